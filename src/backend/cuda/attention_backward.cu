// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/attention_backward.hpp"
#include "backend/cuda/backward_traits.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/tile_dims.hpp"

#include <cmath>
#include <type_traits>

namespace marble::cuda {
namespace {

constexpr int kThreads = 256;

/// One thread a (head, padded row); writes are coalesced, and the strided reads hit the cache of their neighbours.
__global__ void __launch_bounds__(kThreads)
    row_statistics_kernel(StridedRows lse, StridedRows delta, int num_heads, int valid_rows, float scale,
                          DqLayout layout, float* accumulator) {
  constexpr float kLog2E = 1.4426950408889634f;
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index == 0) accumulator[layout.scale] = scale;
  if (index >= num_heads * layout.padded_rows) return;
  const std::int64_t head = index / layout.padded_rows;
  const std::int64_t row = index % layout.padded_rows;
  float exponent = INFINITY;
  float product = 0.f;
  if (row < valid_rows) {
    const float value = static_cast<const float*>(lse.data)[row * lse.row_stride + head * lse.head_stride];
    // A row without legal keys: exp2(score - inf) is 0 whatever the score.
    exponent = value == -INFINITY ? INFINITY : value * kLog2E;
    product = static_cast<const float*>(delta.data)[row * delta.row_stride + head * delta.head_stride];
  }
  accumulator[layout.lse + index] = exponent;
  accumulator[layout.minus_delta + index] = -product;
}

/// One CTA a (head, block of query rows). Fragments go through shared memory to become rows.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads)
    finish_dq_kernel(const float* accumulator, DqLayout layout, StridedRows dq, std::int64_t num_rows,
                     std::int64_t valid_rows, int head_dim, bool is_aligned) {
  constexpr int kPitch = kDim + 8;  // rows of a fragment meet different banks, and chunks of 16 bytes stay aligned
  constexpr int kLoads = 8;         // in flight
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  T* tile = reinterpret_cast<T*>(shared_bytes);
  const std::int64_t num_blocks = layout.padded_rows / kBlock;
  const std::int64_t head = blockIdx.x / num_blocks;
  const std::int64_t block = blockIdx.x % num_blocks;
  const float scale = accumulator[layout.scale];
  const auto* chunks = reinterpret_cast<const float4*>(accumulator) + (head * num_blocks + block) * (kBlock * kDim / 4);
  for (int first = threadIdx.x; first < kBlock * kDim / 4; first += kLoads * kThreads) {
    float4 values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) values[i] = __ldcs(&chunks[first + i * kThreads]);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const DqPlace place = dq_place<kDim>(first + i * kThreads);
      T* pair = &tile[place.row * kPitch + place.column];
      *reinterpret_cast<std::uint32_t*>(pair) = pack_pair<T>(values[i].x * scale, values[i].y * scale);
      *reinterpret_cast<std::uint32_t*>(pair + 8 * kPitch) = pack_pair<T>(values[i].z * scale, values[i].w * scale);
    }
  }
  __syncthreads();
  T* target = static_cast<T*>(dq.data) + head * dq.head_stride;
#pragma unroll 4
  for (int i = threadIdx.x; i < kBlock * kDim / 8; i += kThreads) {
    const std::int64_t row = block * kBlock + i / (kDim / 8);
    const int column = i % (kDim / 8) * 8;
    if (row >= num_rows || column >= head_dim) continue;
    uint4 chunk = {0, 0, 0, 0};
    if (row < valid_rows) chunk = *reinterpret_cast<const uint4*>(&tile[i / (kDim / 8) * kPitch + column]);
    T* values = target + row * dq.row_stride + column;
    if (is_aligned) {
      __stcs(reinterpret_cast<uint4*>(values), chunk);
    } else {
      for (int c = 0; c < 8 && column + c < head_dim; ++c) values[c] = reinterpret_cast<const T*>(&chunk)[c];
    }
  }
}

}  // namespace

int backward_tile_keys(int dim) {
  return dim > 128 ? BackwardTraits<256>::kTileKeys : BackwardTraits<128>::kTileKeys;
}

int backward_tile_queries(int dim) {
  return dim <= 64 ? BackwardTraits<64>::kTileQueries : BackwardTraits<128>::kTileQueries;
}

int backward_key_tiles(int dim) {
  return kBlock / backward_tile_keys(dim);
}

void prepare_row_statistics(const TensorView& lse, const TensorView& delta, std::int64_t valid_rows, float scale,
                            const DqLayout& layout, float* accumulator, cudaStream_t stream) {
  const std::int64_t count = lse.heads * layout.padded_rows;
  const auto num_ctas = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  row_statistics_kernel<<<num_ctas, kThreads, 0, stream>>>(strided(lse), strided(delta), lse.heads,
                                                           static_cast<int>(valid_rows), scale, layout, accumulator);
  check_cuda(cudaGetLastError(), "preparing row statistics for the attention backward kernel");
}

void launch_attention_backward_sm90(const BackwardParams& params, const BackwardTensorMaps& maps, DType dtype, int dim,
                                    int num_ctas, cudaStream_t stream) {
  dispatch(dtype, dim, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
    launch_backward_sm90<T, kDim>(params, maps, num_ctas, stream);
  });
}

void launch_attention_backward_sm80(const BackwardParams& params, DType dtype, int dim, int shared_bytes,
                                    cudaStream_t stream) {
  dispatch(dtype, dim, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
    launch_backward_sm80<T, kDim>(params, shared_bytes, stream);
  });
}

void finish_dq_tiles(const float* accumulator, const DqLayout& layout, const TensorView& dq, std::int64_t valid_rows,
                     int dim, cudaStream_t stream) {
  const auto num_ctas = static_cast<unsigned>(dq.heads * (layout.padded_rows / kBlock));
  if (num_ctas == 0) return;
  dispatch(dq.dtype, dim, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
    const auto kernel = finish_dq_kernel<T, kDim>;
    constexpr int kSharedBytes = kBlock * (kDim + 8) * static_cast<int>(sizeof(T));
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
               "reserving shared memory for dq");
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(dq.data) % 16 == 0 && dq.row_stride % 8 == 0 &&
                            dq.head_stride % 8 == 0 && dq.dim % 8 == 0;
    kernel<<<num_ctas, kThreads, kSharedBytes, stream>>>(accumulator, layout, strided(dq), dq.rows, valid_rows, dq.dim,
                                                         is_aligned);
  });
  check_cuda(cudaGetLastError(), "casting the dQ accumulator");
}

}  // namespace marble::cuda

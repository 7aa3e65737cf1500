// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The backward pass for GPUs, head dimensions and strides that the Hopper kernel does not take. It is made to be right,
// not fast: fp32 throughout, a thread a pair. One CTA owns 16 keys of a (key head, item), so their gradients have one
// owner and a planned order; gradients of queries are added atomically.

#include "backend/cuda/attention_backward.hpp"
#include "backend/cuda/backward_traits.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/ptx.cuh"

#include <type_traits>

namespace marble::cuda {
namespace {

constexpr int kTile = 16;
constexpr int kThreads = kTile * kTile;
constexpr int kArrays = 6;

/// Rows of `kTile` floats each, padded so that a column's elements meet different banks.
struct PlainShared {
  float* keys;
  float* values;
  float* queries;
  float* douts;
  float* dk;
  float* dv;
  int pitch;

  __device__ PlainShared(float* memory, int head_dim) : pitch(head_dim + 1) {
    float** arrays[kArrays] = {&keys, &values, &queries, &douts, &dk, &dv};
    for (int i = 0; i < kArrays; ++i) *arrays[i] = memory + i * kTile * pitch;
  }
};

template <typename T>
__device__ void load_rows(float* target, int pitch, const StridedRows& source, int head, int first, int valid_rows,
                          int head_dim) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    const T* data = static_cast<const T*>(source.data);
    target[row * pitch + column] =
        first + row < valid_rows
            ? static_cast<float>(data[(first + row) * source.row_stride + head * source.head_stride + column])
            : 0.f;
  }
}

__device__ float row_product(const float* a, const float* b, int count) {
  float sum = 0.f;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

__device__ bool is_visible(const VisibilityArrays& visibility, int query_row, int key_row) {
  if (visibility.key_intervals != nullptr) {
    const RowInterval interval = visibility.key_intervals[key_row];
    return interval.lo <= query_row && query_row < interval.hi;
  }
  const auto tokens = [](const RowTracks& row) {
    return TokenTracks{row.sample, row.segment, row.noise, row.position};
  };
  const RowTracks key = visibility.key_tracks[key_row];
  return key.sample >= 0 && is_legal(visibility.rule, tokens(visibility.query_tracks[query_row]), tokens(key));
}

/// P and dS of one pair, dS before the softmax scale.
__device__ float2 pair_weights(const BackwardParams& params, float score, float gradient, std::int64_t statistics) {
  const float lse = params.lse[statistics];
  gradient += params.minus_delta[statistics];
  if (!params.has_softcap) {
    const float weight = exp2_approx(score * params.exponent_scale - lse);
    return {weight, weight * gradient};
  }
  const float capped = tanhf(score * params.score_scale);
  const float weight = exp2_approx(capped * params.exponent_scale - lse);
  return {weight, weight * gradient * (1.f - capped * capped)};
}

/// sums[i][d] += sum over r of weights[r][i] * rows[r][d], for `kTile` rows of each.
__device__ void add_products(float* sums, const float (&weights)[kTile][kTile + 1], const float* rows, int pitch,
                             int head_dim) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    float sum = 0.f;
    for (int r = 0; r < kTile; ++r) sum += weights[r][row] * rows[r * pitch + column];
    sums[row * pitch + column] += sum;
  }
}

template <int kDim>
__device__ void add_dq(float* block, const float (&score_gradients)[kTile][kTile + 1], const PlainShared& shared,
                       int first_row, int head_dim) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    float sum = 0.f;
    for (int key = 0; key < kTile; ++key) sum += score_gradients[row][key] * shared.keys[key * shared.pitch + column];
    atomicAdd(&block[dq_index<kDim>(first_row + row, column)], sum);
  }
}

__device__ void add_into(const StridedRows& target, const float* sums, int pitch, int head, int first, int valid_rows,
                         int head_dim, float scale) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    if (first + row >= valid_rows) continue;
    float* data = static_cast<float*>(target.data);
    data[(first + row) * target.row_stride + head * target.head_stride + column] += sums[row * pitch + column] * scale;
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) attention_backward_plain_kernel(const BackwardParams params) {
  extern __shared__ float memory[];
  __shared__ float weights[kTile][kTile + 1], score_gradients[kTile][kTile + 1];
  const PlainShared shared(memory, params.head_dim);
  const int dim = params.head_dim;
  const int key_head = blockIdx.y;
  const Item item = params.items[blockIdx.x / (kBlock / kTile)];
  const int first_key = item.block * kBlock + blockIdx.x % (kBlock / kTile) * kTile;
  if (first_key >= params.valid_key_rows) return;
  load_rows<T>(shared.keys, shared.pitch, params.k, key_head, first_key, params.valid_key_rows, dim);
  load_rows<T>(shared.values, shared.pitch, params.v, key_head, first_key, params.valid_key_rows, dim);
  for (int i = threadIdx.x; i < kTile * shared.pitch; i += kThreads) shared.dk[i] = shared.dv[i] = 0.f;

  const int query = threadIdx.x / kTile;
  const int key = threadIdx.x % kTile;
  const std::int64_t padded_rows = std::int64_t{params.num_blocks} * kBlock;
  for (int h = params.group_begin[key_head]; h < params.group_begin[key_head + 1]; ++h) {
    const int head = params.group_heads[h];
    for (int r = 0; r < item.run_count; ++r) {
      const Run run = params.runs[item.run_begin + r];
      for (int row = run.begin * kBlock; row < min(run.end * kBlock, params.valid_query_rows); row += kTile) {
        __syncthreads();
        load_rows<T>(shared.queries, shared.pitch, params.q, head, row, params.valid_query_rows, dim);
        load_rows<T>(shared.douts, shared.pitch, params.dout, head, row, params.valid_query_rows, dim);
        __syncthreads();
        const float score = row_product(shared.queries + query * shared.pitch, shared.keys + key * shared.pitch, dim);
        const float gradient =
            row_product(shared.douts + query * shared.pitch, shared.values + key * shared.pitch, dim);
        float2 pair = {0.f, 0.f};
        if (row + query < params.valid_query_rows && first_key + key < params.valid_key_rows &&
            (run.block_class == BlockClass::full || is_visible(params.visibility, row + query, first_key + key)))
          pair = pair_weights(params, score, gradient, head * padded_rows + row + query);
        weights[query][key] = pair.x;
        score_gradients[query][key] = pair.y;
        __syncthreads();
        add_products(shared.dv, weights, shared.douts, shared.pitch, dim);
        add_products(shared.dk, score_gradients, shared.queries, shared.pitch, dim);
        float* block = params.dq + (head * padded_rows + row / kBlock * kBlock) * kDim;
        add_dq<kDim>(block, score_gradients, shared, row % kBlock, dim);
      }
    }
  }
  __syncthreads();
  add_into(params.dk, shared.dk, shared.pitch, key_head, first_key, params.valid_key_rows, dim, params.gradient_scale);
  add_into(params.dv, shared.dv, shared.pitch, key_head, first_key, params.valid_key_rows, dim, 1.f);
}

template <typename T, int kDim>
void launch(const BackwardParams& params, cudaStream_t stream) {
  const auto kernel = attention_backward_plain_kernel<T, kDim>;
  const int shared_bytes = kArrays * kTile * (params.head_dim + 1) * static_cast<int>(sizeof(float));
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "reserving shared memory for the plain attention backward kernel");
  const dim3 grid(static_cast<unsigned>(params.num_items * (kBlock / kTile)),
                  static_cast<unsigned>(params.num_kv_heads));
  kernel<<<grid, kThreads, static_cast<std::size_t>(shared_bytes), stream>>>(params);
  check_cuda(cudaGetLastError(), "launching the plain attention backward kernel");
}

}  // namespace

void launch_attention_backward_plain(const BackwardParams& params, DType dtype, int dim, cudaStream_t stream) {
  const auto with_type = [&]<typename T>(T) {
    if (dim == 64) return launch<T, 64>(params, stream);
    if (dim == 128) return launch<T, 128>(params, stream);
    launch<T, 256>(params, stream);
  };
  if (dtype == DType::bf16) return with_type(__nv_bfloat16{});
  with_type(__half{});
}

}  // namespace marble::cuda

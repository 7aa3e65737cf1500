// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a unit of forward work begins and ends: carried state in and out, or the normalised output and its LSE.
//
// A state is stored as the threads hold it: [warpgroup][16-byte chunk][thread], O first, then each thread's two maxima
// and two partial sums. The thread that wrote a chunk reads it back, so every access is coalesced, needs no shared
// memory, and no bit changes on the way. The order is private to tiles of 128 query rows in two warpgroups.

#include "backend/cuda/online_softmax.cuh"
#include "backend/cuda/params.hpp"
#include "backend/cuda/tile_walk.cuh"

namespace marble::cuda {

template <int kDim>
inline constexpr std::int64_t kStateFloats = std::int64_t{kBlock} * kDim + 2 * 128 * 4;

/// Which fragments of a 128-row tile a thread holds (wgmma.cuh).
struct FragmentOwner {
  int group;
  int thread;

  __device__ __forceinline__ int row() const { return group * 64 + thread / 32 * 16 + thread % 32 / 4; }
};

struct UnitOutput {
  int head;
  int block;
  bool starts_empty;
  bool finishes;
  float* states;
  std::int64_t slot;

  template <int kDim>
  __device__ __forceinline__ float4* state() const {
    return reinterpret_cast<float4*>(states + slot * kStateFloats<kDim>);
  }
};

__device__ __forceinline__ UnitOutput unit_output(const ForwardParams& params, int index, int head, int block,
                                                  int flags) {
  if (params.num_splits > 1) return {head, block, true, false, params.partials, index};
  return {head,
          block,
          (flags & Item::kFirst) != 0,
          (flags & Item::kLast) != 0,
          params.state,
          std::int64_t{head} * params.num_blocks + block};
}

template <int kOutputs>
__device__ __forceinline__ void load_output_state(const float4* state, FragmentOwner owner, float (&output)[kOutputs]) {
  const float4* chunks = state + owner.group * (kOutputs / 4 * 128) + owner.thread;
#pragma unroll
  for (int i = 0; i < kOutputs / 4; ++i) {
    const float4 chunk = __ldcs(&chunks[i * 128]);
    output[4 * i] = chunk.x;
    output[4 * i + 1] = chunk.y;
    output[4 * i + 2] = chunk.z;
    output[4 * i + 3] = chunk.w;
  }
}

template <int kDim>
__device__ __forceinline__ SoftmaxState load_softmax_state(const float4* state, FragmentOwner owner) {
  const float4 rows = __ldcs(&state[kBlock * kDim / 4 + owner.group * 128 + owner.thread]);
  return {{rows.x, rows.y}, {rows.z, rows.w}};
}

template <int kOutputs>
__device__ __forceinline__ void store_state(float4* state, FragmentOwner owner, const float (&output)[kOutputs],
                                            const SoftmaxState& softmax) {
  float4* chunks = state + owner.group * (kOutputs / 4 * 128) + owner.thread;
#pragma unroll
  for (int i = 0; i < kOutputs / 4; ++i)
    __stcs(&chunks[i * 128], make_float4(output[4 * i], output[4 * i + 1], output[4 * i + 2], output[4 * i + 3]));
  __stcs(&state[kBlock * kOutputs / 2 + owner.group * 128 + owner.thread],
         make_float4(softmax.row_max[0], softmax.row_max[1], softmax.row_sum[0], softmax.row_sum[1]));
}

/// Transposes a 4 x 4 matrix of words held one row a lane by the lanes of a quad.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&words)[4], int lane) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      std::uint32_t& low = words[i];
      std::uint32_t& high = words[i + distance];
      const std::uint32_t received = __shfl_xor_sync(~0u, upper ? low : high, distance);
      (upper ? low : high) = received;
    }
  }
}

/// Normalises, rounds once, and writes rows that are valid. The quad that shares a row swaps its words so that each
/// lane stores 16 contiguous bytes; a detour through shared memory would hold up the next unit's queries.
template <typename T, int kDim, bool kAligned>
__device__ __forceinline__ void write_output(const ForwardParams& params, const UnitOutput& unit, FragmentOwner owner,
                                             const float (&output)[kDim / 2], const SoftmaxState& softmax) {
  const int lane = owner.thread % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(softmax.row_sum[r]);
    const float scale = sum == 0.f ? 0.f : 1.f / sum;
    const std::int64_t row = std::int64_t{unit.block} * kBlock + owner.row() + 8 * r;
    const bool is_valid = row < params.valid_query_rows;
    if (is_valid && lane == 0) {
      constexpr float kLn2 = 0.6931471805599453f;
      params.lse[row * params.lse_row_stride + unit.head * params.lse_head_stride] =
          sum == 0.f ? -INFINITY : __fmul_rn(softmax.row_max[r], params.exponent_scale) * kLn2 + logf(sum);
    }
    T* out = static_cast<T*>(params.out.data) + row * params.out.row_stride + unit.head * params.out.head_stride;
#pragma unroll
    for (int group = 0; group < kDim / 32; ++group) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int base = 4 * (4 * group + i) + 2 * r;
        words[i] = pack_pair<T>(output[base] * scale, output[base + 1] * scale);
      }
      transpose_quad(words, lane);
      const int column = 8 * (4 * group + lane);
      if (!is_valid || column >= params.head_dim) continue;
      if (kAligned || params.is_aligned) {
        *reinterpret_cast<uint4*>(out + column) = {words[0], words[1], words[2], words[3]};
      } else {
        const T* values = reinterpret_cast<const T*>(words);
#pragma unroll
        for (int c = 0; c < 8; ++c)
          if (column + c < params.head_dim) out[column + c] = values[c];
      }
    }
  }
}

}  // namespace marble::cuda

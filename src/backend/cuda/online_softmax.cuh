// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Online softmax over the accumulator fragments of wgmma.cuh: a thread holds two rows, a quad of lanes shares them.
//   1. row_max is the running maximum, equal across the quad; -inf until a key is seen.
//   2. row_sum is this thread's own part of the sum; the quad adds up only at the very end. So carrying the state from
//      call to call repeats exactly the arithmetic of one longer call.
//   3. A row that has seen no key subtracts 0, not -inf: exponentials of -inf are 0 and never NaN.

#include "backend/cuda/params.hpp"
#include "backend/cuda/ptx.cuh"

namespace marble::cuda {

struct SoftmaxState {
  float row_max[2];
  float row_sum[2];
};

__device__ __forceinline__ SoftmaxState empty_softmax_state() {
  return {{-INFINITY, -INFINITY}, {0.f, 0.f}};
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// tanh goes through exp2, good to fp32 rounding: tanh.approx is off by 2^-11, 0.02 in a score capped at 50.
template <int kCount>
__device__ __forceinline__ void map_scores(float (&scores)[kCount], ScoreMap map, float scale) {
  if (map == ScoreMap::softcap) {
    const float exponent_scale = scale * 2.885390082f;  // 2 log2(e)
#pragma unroll
    for (int i = 0; i < kCount; ++i) scores[i] = 1.f - __fdividef(2.f, exp2_approx(scores[i] * exponent_scale) + 1.f);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scores[i] *= scale;
  }
}

/// Scores whose bit is clear become -inf.
template <int kCount>
__device__ __forceinline__ void apply_mask(float (&scores)[kCount], const std::uint32_t (&words)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t bit = 1u << (2 * (i / 4) + i % 2);
    if ((words[(i / 2) % 2] & bit) == 0) scores[i] = -INFINITY;
  }
}

/// A row's maximum as a base-2 exponent; 0 for a row that has seen no key. Rounded here: fused into the difference of
/// an old and a new one, the product's rounding error would shrink or grow the sums anew with every tile.
__device__ __forceinline__ float max_exponent(float row_max, float exponent_scale) {
  return row_max == -INFINITY ? 0.f : __fmul_rn(row_max, exponent_scale);
}

/// Whether tiles that move no row's maximum skip its reduction over the quad and the rescaling, which changes no bit.
/// At head dimension 64 the branch costs more than it saves. (References that lag behind the maximum would save more,
/// and cost accuracy: a row's largest exponential is then no longer 1, which needs no rounding.)
constexpr bool skips_still_tiles(int dim) {
  return dim > 64;
}

/// Raises the maxima by those of a tile; `rescale` is what earlier sums and outputs shrink by.
__device__ __forceinline__ void raise_maxima(SoftmaxState& state, const float (&tile_max)[2], float exponent_scale,
                                             float (&rescale)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float row_max = fmaxf(state.row_max[r], quad_max(tile_max[r]));
    rescale[r] = exp2_approx(__fmul_rn(state.row_max[r], exponent_scale) - max_exponent(row_max, exponent_scale));
    state.row_max[r] = row_max;
    state.row_sum[r] *= rescale[r];
  }
}

/// The maxima of this thread's scores in a tile.
template <int kCount>
__device__ __forceinline__ void find_maxima(const float (&scores)[kCount], float (&tile_max)[2]) {
  tile_max[0] = fmaxf(scores[0], scores[1]);
  tile_max[1] = fmaxf(scores[2], scores[3]);
#pragma unroll
  for (int i = 4; i < kCount; i += 4) {
    tile_max[0] = fmaxf(tile_max[0], fmaxf(scores[i], scores[i + 1]));
    tile_max[1] = fmaxf(tile_max[1], fmaxf(scores[i + 2], scores[i + 3]));
  }
}

/// Whether a tile raises the maximum of any row of the warp's.
__device__ __forceinline__ bool any_raises(const SoftmaxState& state, const float (&tile_max)[2]) {
  return __any_sync(~0u, tile_max[0] > state.row_max[0] || tile_max[1] > state.row_max[1]) != 0;
}

/// Turns scores into exponentials and updates the state; `rescale` is what earlier outputs shrink by.
template <bool kMasked, bool kSkips, int kCount>
__device__ __forceinline__ void update_softmax(SoftmaxState& state, float (&scores)[kCount], float (&rescale)[2],
                                               float exponent_scale) {
  float tile_max[2];
  find_maxima(scores, tile_max);
  rescale[0] = rescale[1] = 1.f;
  if (!kSkips || any_raises(state, tile_max)) raise_maxima(state, tile_max, exponent_scale, rescale);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float subtracted =
        kMasked ? max_exponent(state.row_max[r], exponent_scale) : __fmul_rn(state.row_max[r], exponent_scale);
    float sum = state.row_sum[r];
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
      scores[i] = exp2_approx(scores[i] * exponent_scale - subtracted);
      scores[i + 1] = exp2_approx(scores[i + 1] * exponent_scale - subtracted);
      sum += scores[i] + scores[i + 1];
    }
    state.row_sum[r] = sum;
  }
}

/// Ends the softmax here: ptxas would fill the latency of its shuffles with the wait for the product in flight, and
/// then compute all exponentials behind that wait, where no product hides them. The sums depend on every exponential.
__device__ __forceinline__ void finish_softmax_before_wait(const SoftmaxState& state) {
  const std::uint32_t mask = state.row_sum[0] + state.row_sum[1] < -1.f ? 1u : ~0u;  // sums are never negative
  asm volatile("bar.warp.sync %0;" ::"r"(mask) : "memory");
}

template <bool kSkips, int kCount>
__device__ __forceinline__ void rescale_output(float (&output)[kCount], const float (&rescale)[2]) {
  if (kSkips && __all_sync(~0u, rescale[0] == 1.f && rescale[1] == 1.f)) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) output[i] *= rescale[(i / 2) % 2];
}

/// The A operand of the next product: exponentials rounded to the input type, pairs packed.
template <typename T, int kCount>
__device__ __forceinline__ void pack_probabilities(std::uint32_t (&packed)[kCount / 2], const float (&scores)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) packed[i] = pack_pair<T>(scores[2 * i], scores[2 * i + 1]);
}

}  // namespace marble::cuda

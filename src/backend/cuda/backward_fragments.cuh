// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the backward kernel's consumers do with fragments (wgmma.cuh) of transposed scores, keys down and queries
// across, and how their sums leave the registers.

#include "backend/cuda/attention_backward.hpp"
#include "backend/cuda/backward_shared.cuh"
#include "backend/cuda/ptx_bulk.cuh"
#include "backend/cuda/wgmma.cuh"

namespace marble::cuda {

// Named barriers of both consumer warpgroups. Exchanges have two, a stage each: one group may be a tile ahead.
inline constexpr int kExchangeBarrier = 1;
inline constexpr int kKeyTurnBarrier = 3;

__device__ __forceinline__ int fragment_row(int thread) {
  return thread / 32 * 16 + thread % 32 / 4;
}

__device__ __forceinline__ bool is_masked(const std::uint32_t (&mask)[2], int i) {
  return (mask[(i / 2) % 2] & (1u << (2 * (i / 4) + i % 2))) == 0;
}

/// A value for each of a lane's queries, in pairs; `columns` points at the first.
template <int kPairs>
__device__ __forceinline__ void load_columns(float2 (&pairs)[kPairs], const float2* columns) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) pairs[j] = columns[4 * j];
}

/// A product's accumulators start as such values, two rows of keys alike.
template <int kCount>
__device__ __forceinline__ void load_accumulators(float (&accumulators)[kCount], const float2* columns) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const float2 pair = columns[i / 4 * 4];
    accumulators[i] = pair.x;
    accumulators[i + 1] = pair.y;
  }
}

/// Scores become P = exp2(score * scale - lse), 0 where masked.
template <bool kMasked, int kCount>
__device__ __forceinline__ void exponentiate(float (&scores)[kCount], const float2 (&lse)[kCount / 4], float scale,
                                             const std::uint32_t (&mask)[2]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 columns = lse[j];
#pragma unroll
    for (int i = 4 * j; i < 4 * j + 4; ++i) {
      scores[i] = exp2_approx(scores[i] * scale - (i % 2 == 0 ? columns.x : columns.y));
      if (kMasked && is_masked(mask, i)) scores[i] = 0.f;
    }
  }
}

template <typename T, int kPacked>
__device__ __forceinline__ void pack(std::uint32_t (&packed)[kPacked], const float* values) {
#pragma unroll
  for (int i = 0; i < kPacked; ++i) packed[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
}

/// dP - delta becomes dS = P (dP - delta).
template <int kCount>
__device__ __forceinline__ void differentiate(float (&gradients)[kCount], const float (&weights)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) gradients[i] *= weights[i];
}

/// Raw scores that pass through a softcap become P, and dP - delta becomes dS, which takes the slope 1 - tanh^2. tanh
/// goes through exp2, good to fp32 rounding. `lse` points at this lane's first query.
template <int kCount>
__device__ __forceinline__ void differentiate_capped(float (&gradients)[kCount], float (&scores)[kCount],
                                                     const float2* lse, const BackwardParams& params,
                                                     const std::uint32_t (&mask)[2]) {
  const float tanh_scale = params.score_scale * 2.885390082f;  // 2 log2(e)
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float2 columns = lse[i / 4 * 4];
    const float capped = 1.f - __fdividef(2.f, exp2_approx(scores[i] * tanh_scale) + 1.f);
    const float weight = exp2_approx(capped * params.exponent_scale - (i % 2 == 0 ? columns.x : columns.y));
    scores[i] = is_masked(mask, i) ? 0.f : weight;
    gradients[i] *= scores[i] * (1.f - capped * capped);
  }
}

/// Adds this warpgroup's part of a dQ tile, which lies in memory as the threads hold it: every access is coalesced.
template <int kCount>
__device__ __forceinline__ void add_dq_tile(float* tiles, int tile, int tile_size, int group, int thread,
                                            const float (&dq)[kCount]) {
  float* target = tiles + std::int64_t{tile} * tile_size + group * (kCount * 128) + thread * 4;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) reduce_add(target + i * 128, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
}

/// A thread's place in a tensor of gradients.
struct RowsOfThread {
  int row;     // and row + 8
  int column;  // of the fragment's first accumulator in lane 0 of the quad
  int lane;    // in the quad
};

/// target += sums * scale. A reduction although a unit that is not split owns its rows: nothing waits for it, where
/// reading and writing would cost a memory latency each. A quad covers a 32-byte sector.
template <int kCount>
__device__ __forceinline__ void add_gradient(const BackwardParams& params, const StridedRows& target, int head,
                                             const RowsOfThread& place, const float (&sums)[kCount], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = place.row + 8 * r;
    if (row >= params.valid_key_rows) continue;
    float* values = static_cast<float*>(target.data) + row * target.row_stride + head * target.head_stride;
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
      const int column = place.column + 2 * i - 4 * r + 2 * place.lane;
      if (column < params.head_dim) reduce_add(values + column, sums[i] * scale, sums[i + 1] * scale);
    }
  }
}

/// A thread's part of a unit's dK and dV.
template <int kCount>
struct KeyGradients {
  float dk[kCount];
  float dv[kCount];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) dk[i] = dv[i] = 0.f;
  }
};

/// What both kinds of consumer warpgroups have in common: how units begin and end, and the barriers between.
template <typename T, int kDim>
class BackwardConsumerBase {
 public:
  using Traits = BackwardTraits<kDim>;

  __device__ __forceinline__ BackwardConsumerBase(BackwardShared<T, kDim>& shared, const BackwardParams& params,
                                                  int group)
      : shared_(shared), params_(params), group_(group) {}

  /// Waits for a unit and its keys, and clears the sums; false when there is no more work.
  template <int kCount>
  __device__ __forceinline__ bool begin_unit(KeyGradients<kCount>& sums) {
    barrier_wait(&shared_.work_full[rings_.stage(ConsumerRings::kUnits)], rings_.parity(ConsumerRings::kUnits));
    if (unit().key_head < 0) return false;
    barrier_wait(&shared_.k_full, rings_.stage(ConsumerRings::kUnits));
    barrier_wait(&shared_.v_full, rings_.stage(ConsumerRings::kUnits));
    sums.clear();
    return true;
  }

  /// The sums of a unit leave. This warpgroup's begin at `row` and `column` of the key tile.
  template <int kCount>
  __device__ __forceinline__ void end_unit(int row, int column, const KeyGradients<kCount>& sums) {
    release(&shared_.keys_empty);
    const int key_head = unit().key_head;
    const RowsOfThread rows = {unit().key_row + row + fragment_row(thread()), column, thread() % 4};
    wait_key_turn();
    add_gradient(params_, params_.dk, key_head, rows, sums.dk, params_.gradient_scale);
    add_gradient(params_, params_.dv, key_head, rows, sums.dv, 1.f);
    pass_key_turn();
    release(&shared_.work_empty[rings_.stage(ConsumerRings::kUnits)]);
    rings_.advance(ConsumerRings::kUnits);
  }

  __device__ __forceinline__ QueryTile wait_queries() {
    barrier_wait(&shared_.q_full[stage()], parity());
    return shared_.tile[stage()];
  }

  /// The words of keys `key` and `key` + 8, shifted to the tile's queries; all ones for a full tile.
  __device__ __forceinline__ void read_mask(const QueryTile& tile, int key, int lane, int shift,
                                            std::uint32_t (&mask)[2]) {
    if ((tile.flags & QueryTile::kPartial) == 0) return;
    barrier_wait(&shared_.mask_full[rings_.stage(ConsumerRings::kMasks)], rings_.parity(ConsumerRings::kMasks));
    const std::uint32_t* words = shared_.mask[rings_.stage(ConsumerRings::kMasks)] + key * 4 + lane;
    mask[0] = words[0] >> shift;
    mask[1] = words[32] >> shift;
    if ((tile.flags & QueryTile::kReleasesMask) != 0) {
      release(&shared_.mask_empty[rings_.stage(ConsumerRings::kMasks)]);
      rings_.advance(ConsumerRings::kMasks);
    }
  }

  /// This warp has read what the stage holds.
  __device__ __forceinline__ void release(std::uint64_t* empty) {
    __syncwarp();
    if (thread_index() % 32 == 0) barrier_arrive(empty);
  }

 protected:
  /// This warpgroup among the consumers, and this thread in it.
  __device__ __forceinline__ int group() const { return group_; }
  __device__ __forceinline__ static int thread() { return static_cast<int>(thread_index() % 128); }

  /// The unit at hand.
  __device__ __forceinline__ const BackwardMessage& unit() const {
    return shared_.work[rings_.stage(ConsumerRings::kUnits)];
  }

  /// Of the query tile at hand.
  __device__ __forceinline__ int stage() const { return rings_.stage(ConsumerRings::kTiles); }
  __device__ __forceinline__ std::uint32_t parity() const { return rings_.parity(ConsumerRings::kTiles); }

  BackwardShared<T, kDim>& shared_;
  const BackwardParams& params_;
  const int group_;
  ConsumerRings rings_;

 private:
  /// Splits of an item add their dK and dV in their order, if there is a planned one.
  __device__ __forceinline__ void wait_key_turn() const {
    if (has_splits(params_) && params_.order.key_turns != nullptr)
      wait_turn(&params_.order.key_turns[unit().tile], unit().turn);
  }

  __device__ __forceinline__ void pass_key_turn() const {
    if (!has_splits(params_) || params_.order.key_turns == nullptr) return;
    __threadfence();
    named_barrier_sync(kKeyTurnBarrier, 128 * kBackwardGroups);
    if (group() == 0 && thread() == 0) pass_turn(&params_.order.key_turns[unit().tile], unit().turn + 1);
  }
};

}  // namespace marble::cuda

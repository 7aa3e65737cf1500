// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loading side of the Hopper forward kernel: tiles and shared memory, and the four warps that schedule, load and
// build masks ahead of the consumers (attention_forward_sm90.cuh).

#include "backend/cuda/attention_epilogue.cuh"
#include "backend/cuda/attention_forward.hpp"
#include "backend/cuda/ptx_bulk.cuh"
#include "backend/cuda/tile_mask.cuh"
#include "backend/cuda/tile_walk.cuh"

namespace marble::cuda {

template <typename T, int kDim>
struct ForwardTraits {
  static constexpr int kTileKeys = kDim > 128 ? 64 : 128;  // a 256-wide tile of 128 keys would not fit twice
  static constexpr int kHalves = kBlock / kTileKeys;
  static constexpr int kQueryStages = kDim > 128 ? 1 : 2;
  static constexpr int kStages = kDim == 64 ? 4 : 2;  // narrow tiles pass faster than the copy engine answers
  static constexpr int kMaskStages = 2;               // one a mask warp
  static constexpr int kWorkStages = 1;               // drawing further ahead would unbalance the end of a launch
  static constexpr int kThreads = 384;
  static constexpr bool kScoresAhead = kDim == 64;  // two tiles of scores and the output fit into registers
  static constexpr int kConsumerRegisters = kDim == 128 ? 216 : 224;
  static constexpr int kLoaderRegisters = kDim == 128 ? 72 : 56;
  static constexpr int kQueryBytes = kBlock * kDim * 2;
  static constexpr int kTileBytes = kTileKeys * kDim * 2;
  static constexpr bool kPingPong = kDim > 128;  // consumers take turns to issue products
};

/// What the scheduler tells everyone about a unit. In three registers: with a fourth, narrow tiles' consumers spill.
struct UnitMessage {
  int index;  // of the unit; -1: no more work
  int head;
  int packed;  // its query block, the kind of its first tile, its item's flags, from the top

  static_assert((Item::kFirst | Item::kLast) < 4 && kPartialTile < 4, "two bits hold each");

  __device__ __forceinline__ static UnitMessage of(int index, int head, const Item& item, TileKind first_tile) {
    return {index, head, item.block << 4 | first_tile << 2 | item.flags};
  }
  __device__ __forceinline__ int block() const { return packed >> 4; }
  __device__ __forceinline__ int first_tile() const { return packed >> 2 & 3; }
  __device__ __forceinline__ int flags() const { return packed & 3; }
};

/// Shared memory. Tiles are boxes of 64 columns (128 bytes a row), swizzled by the copy engine.
template <typename T, int kDim>
struct ForwardShared {
  using Traits = ForwardTraits<T, kDim>;
  alignas(1024) T q[Traits::kQueryStages][kBlock * kDim];
  alignas(1024) T k[Traits::kStages][Traits::kTileKeys * kDim];
  alignas(1024) T v[Traits::kStages][Traits::kTileKeys * kDim];
  alignas(16) std::uint32_t mask[Traits::kMaskStages][kMaskWords];
  alignas(16) UnitMessage work[Traits::kWorkStages];
  BlockWalk walk[Traits::kWorkStages];  // of the announced units
  int next_tile[Traits::kStages];       // with a K tile: the kind of the tile after it, or a run's length
  std::uint64_t q_full[Traits::kQueryStages], q_empty[Traits::kQueryStages];
  std::uint64_t k_full[Traits::kStages], k_empty[Traits::kStages];
  std::uint64_t v_full[Traits::kStages], v_empty[Traits::kStages];
  std::uint64_t mask_full[Traits::kMaskStages], mask_empty[Traits::kMaskStages];
  std::uint64_t work_full[Traits::kWorkStages], work_empty[Traits::kWorkStages];
};

/// A position in a ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

inline constexpr int kConsumerWarps = 8;
inline constexpr int kMaskWarps = 2;

template <typename T, int kDim>
__device__ __forceinline__ void init_barriers(ForwardShared<T, kDim>& shared) {
  using Traits = ForwardTraits<T, kDim>;
  const auto init = [](std::uint64_t* full, std::uint64_t* empty, int stages, int producers, int readers) {
    for (int i = 0; i < stages; ++i) {
      barrier_init(&full[i], producers);
      barrier_init(&empty[i], readers);
    }
  };
  init(shared.q_full, shared.q_empty, Traits::kQueryStages, 1, kConsumerWarps);
  init(shared.k_full, shared.k_empty, Traits::kStages, 1, kConsumerWarps);
  init(shared.v_full, shared.v_empty, Traits::kStages, 1, kConsumerWarps);
  init(shared.mask_full, shared.mask_empty, Traits::kMaskStages, 1, kConsumerWarps);
  init(shared.work_full, shared.work_empty, Traits::kWorkStages, 1, kConsumerWarps + kMaskWarps + 1);
  barrier_init_fence();
}

/// Units of equal length end together: all would then read their next states from memory at once.
template <int kDim>
__device__ __forceinline__ void prefetch_state(const ForwardParams& params, const UnitMessage& message) {
  const UnitOutput unit = unit_output(params, message.index, message.head, message.block(), message.flags());
  if (!unit.starts_empty) bulk_prefetch(unit.state<kDim>(), kStateFloats<kDim> * sizeof(float));
}

/// One thread draws units, longest first as the plan sorted them, and announces them before anyone needs them: the
/// chain counter, item, run costs three memory latencies.
template <typename T, int kDim>
__device__ __forceinline__ void schedule(ForwardShared<T, kDim>& shared, const ForwardParams& params) {
  Ring<ForwardTraits<T, kDim>::kWorkStages> work;
  const int num_units = params.num_heads * params.num_items * params.num_splits;
  for (bool more = true; more; work.advance()) {
    barrier_wait(&shared.work_empty[work.stage], work.parity ^ 1);
    const int index = atomicAdd(params.counter, 1);
    more = index < num_units;
    UnitMessage message = {-1, 0, kNoTile};
    if (more) {
      const Unit unit = unit_at(index, params.num_items, params.num_splits);
      const Item item = params.items[unit.item];
      const BlockWalk walk(item, params.runs, unit.split, params.num_splits);
      message = UnitMessage::of(index, unit.head, item, walk.next_kind());
      shared.walk[work.stage] = walk;
    }
    shared.work[work.stage] = message;
    barrier_arrive(&shared.work_full[work.stage]);
    if (more) prefetch_state<kDim>(params, message);
  }
}

/// The loader thread. Tiles are one stream that runs on across units; V lags one tile behind K, because the product
/// that needs it comes one tile later.
template <typename T, int kDim>
class Loader {
 public:
  using Traits = ForwardTraits<T, kDim>;

  __device__ __forceinline__ Loader(ForwardShared<T, kDim>& shared, const ForwardParams& params,
                                    const ForwardTensorMaps& maps)
      : shared_(shared), params_(params), maps_(maps) {}

  __device__ __forceinline__ void run() {
    Ring<Traits::kWorkStages> work;
    for (;;) {
      barrier_wait(&shared_.work_full[work.stage], work.parity);
      const UnitMessage message = shared_.work[work.stage];
      const BlockWalk walk = shared_.walk[work.stage];
      barrier_arrive(&shared_.work_empty[work.stage]);
      work.advance();
      if (message.first_tile() != kNoTile)
        load_unit(message, walk);
      else
        load_due_values();
      if (message.index < 0) return;
    }
  }

 private:
  __device__ __forceinline__ void load_unit(const UnitMessage& message, BlockWalk walk) {
    const int key_head = params_.head_map[message.head];
    bool is_first = true;
    int block;
    BlockClass block_class;
    while (walk.next(block, block_class)) {
#pragma unroll
      for (int half = 0; half < Traits::kHalves; ++half) {
        const int row = block * kBlock + half * Traits::kTileKeys;
        const bool is_last_half = half == Traits::kHalves - 1;
        const int same = block_class == BlockClass::full ? kFullTile : kPartialTile;
        load_keys(row, key_head, is_last_half ? walk.next_in_a_row() : same);
        // A single query stage is free only when the unit before is through, and that needs its last V.
        if (is_first && Traits::kQueryStages > 1) load_queries(message.block(), message.head);
        load_due_values();
        if (is_first && Traits::kQueryStages == 1) load_queries(message.block(), message.head);
        is_first = false;
        due_row_ = row;
        due_head_ = key_head;
      }
    }
  }

  __device__ __forceinline__ void load_queries(int block, int head) {
    barrier_wait(&shared_.q_empty[q_.stage], q_.parity ^ 1);
    barrier_arrive_expect(&shared_.q_full[q_.stage], Traits::kQueryBytes);
#pragma unroll
    for (int column = 0; column < kDim; column += 64)
      tma_load(&shared_.q[q_.stage][column * kBlock], &maps_.q, &shared_.q_full[q_.stage], kEvictFirst, column,
               block * kBlock, head);
    q_.advance();
  }

  __device__ __forceinline__ void load_keys(int row, int key_head, int next_tile) {
    barrier_wait(&shared_.k_empty[k_.stage], k_.parity ^ 1);
    shared_.next_tile[k_.stage] = next_tile;
    load_tile(shared_.k[k_.stage], &maps_.k, &shared_.k_full[k_.stage], row, key_head);
    k_.advance();
  }

  __device__ __forceinline__ void load_due_values() {
    if (due_row_ < 0) return;
    barrier_wait(&shared_.v_empty[v_.stage], v_.parity ^ 1);
    load_tile(shared_.v[v_.stage], &maps_.v, &shared_.v_full[v_.stage], due_row_, due_head_);
    v_.advance();
    due_row_ = -1;
  }

  __device__ __forceinline__ void load_tile(T* tile, const CUtensorMap* map, std::uint64_t* full, int row, int head) {
    barrier_arrive_expect(full, Traits::kTileBytes);
#pragma unroll
    for (int column = 0; column < kDim; column += 64)
      tma_load(&tile[column * Traits::kTileKeys], map, full, kEvictLast, column, row, head);
  }

  ForwardShared<T, kDim>& shared_;
  const ForwardParams& params_;
  const ForwardTensorMaps& maps_;
  Ring<Traits::kQueryStages> q_;
  Ring<Traits::kStages> k_, v_;
  int due_row_ = -1;  // of the V tile that the last K tile waits for
  int due_head_ = 0;
};

/// Mask warp `warp` of kMaskWarps builds every kMaskWarps-th partial block of this CTA, always in its own stage.
template <typename T, int kDim>
__device__ __forceinline__ void build_masks(ForwardShared<T, kDim>& shared, const ForwardParams& params, int warp,
                                            int lane) {
  Ring<ForwardTraits<T, kDim>::kWorkStages> work;
  std::uint32_t parity = 0;
  int turn = 0;
  const VisibilityArrays& visibility = params.visibility;
  for (;;) {
    barrier_wait(&shared.work_full[work.stage], work.parity);
    const UnitMessage message = shared.work[work.stage];
    BlockWalk walk = shared.walk[work.stage];
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.work_empty[work.stage]);
    work.advance();
    if (message.index < 0) return;
    if (message.first_tile() == kNoTile) continue;
    int block;
    BlockClass block_class;
    while (walk.next(block, block_class)) {
      if (block_class == BlockClass::full) continue;
      const bool is_mine = turn == warp;
      if (++turn == kMaskWarps) turn = 0;
      if (!is_mine) continue;
      if (visibility.key_intervals != nullptr) {
        const LaneIntervals intervals = load_intervals(visibility.key_intervals, block, lane);
        barrier_wait(&shared.mask_empty[warp], parity ^ 1);
        build_mask_from_intervals(shared.mask[warp], intervals, message.block() * kBlock, lane);
      } else {
        barrier_wait(&shared.mask_empty[warp], parity ^ 1);
        build_mask_from_tracks(shared.mask[warp], visibility, block, message.block(), lane);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&shared.mask_full[warp]);
      parity ^= 1;
    }
  }
}

}  // namespace marble::cuda

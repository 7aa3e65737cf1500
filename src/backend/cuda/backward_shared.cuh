// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared memory of the Hopper backward kernel, and the messages that pass through it. Barriers come in full/empty pairs
// over rings of stages; `parity` flips at wrap. Tiles are boxes of 64 columns (128 bytes a row), swizzled.

#include "backend/cuda/backward_traits.hpp"
#include "backend/cuda/backward_walk.hpp"
#include "backend/cuda/planned_order.hpp"
#include "backend/cuda/ptx.cuh"

#include <cstdint>

namespace marble::cuda {

/// A position in a ring of two stages, in one register.
struct PairRing {
  std::uint32_t count = 0;

  __device__ __forceinline__ int stage() const { return static_cast<int>(count & 1); }
  __device__ __forceinline__ std::uint32_t parity() const { return count >> 1 & 1; }
  __device__ __forceinline__ void advance() { ++count; }
};

/// Positions in three rings of two stages, in one register.
class ConsumerRings {
 public:
  enum Ring { kTiles, kMasks, kUnits };

  __device__ __forceinline__ int stage(Ring ring) const { return static_cast<int>(counts_ >> (2 * ring) & 1); }
  __device__ __forceinline__ std::uint32_t parity(Ring ring) const { return counts_ >> (2 * ring + 1) & 1; }
  __device__ __forceinline__ void advance(Ring ring) {
    const std::uint32_t field = 3u << (2 * ring);
    counts_ = (counts_ & ~field) | ((counts_ + (1u << (2 * ring))) & field);
  }

 private:
  std::uint32_t counts_ = 0;
};

/// Where the loader is. In shared memory: its thread has few registers.
struct LoaderState {
  BackwardUnit unit;
  GroupWalk walk;
  GroupWalk::Block block;
  PairRing stages, units, masks;
};

/// What the loader tells the consumers about a unit.
struct BackwardMessage {
  int key_head;  // -1: no more work
  int key_row;   // first row of the key tile
  int turn;      // to add to the key tile's gradients, in a planned order
  int tile;      // among the launch's key tiles
};

/// A mask that the loader asks for.
struct MaskRequest {
  int key_row;
  int query_block;  // -1: no more
};

/// What the loader tells the consumers about a query tile, with its Q.
struct QueryTile {
  static constexpr int kPartial = 1;
  static constexpr int kReleasesMask = 2;  // the last tile of its block
  static constexpr int kEndsUnit = 4;
  static constexpr int kFullFollows = 8;  // as this one is; said within a run
  int flags;
  int part;     // of its block
  int dq_tile;  // into the dQ tiles of this tile size
};

/// Where a query tile's dQ goes, and when in a planned order.
struct DqMessage {
  static constexpr int kNone = -1;
  int tile;  // into the dQ tiles of this tile size; kNone: no more
  int turn;  // into the turns: a tile has its own; wide tiles: a block, from its first tile to its last
  int waits_for = kNone;
  int leaves = kNone;
};

inline constexpr int kFeedingWarps = 3;  // that build masks or add dQ, beside the loader

/// Threads that add dQ; the warps between them and the loader build masks. In a planned order there are two, a stage
/// each, for passing a turn on takes about as long as a tile.
template <typename Traits>
__device__ __forceinline__ int num_adders(const BackwardParams& params) {
  return Traits::kStagesDq && params.order.query_turns != nullptr ? 2 : 1;
}

/// The loader is at most three tiles ahead of the one whose dQ is being added; twice as many, for the messages that end
/// the work have no tiles.
inline constexpr int kDqMessages = 8;

template <typename T, int kDim>
struct BackwardShared {
  using Traits = BackwardTraits<kDim>;
  alignas(1024) T k[Traits::kTileKeys * kDim];
  alignas(1024) T v[Traits::kTileKeys * kDim];
  alignas(1024) T q[Traits::kStages][Traits::kTileQueries * kDim];
  alignas(1024) T dout[Traits::kStages][Traits::kTileQueries * kDim];
  alignas(1024) T exchange[Traits::kExchanges][Traits::kTileQueries * Traits::kTileKeys];  // dS; wide: P, dS both ways
  alignas(128) float dq[Traits::kDqMakers][Traits::kStagesDq ? Traits::kDqPart : 1];
  alignas(16) std::uint32_t mask[Traits::kMaskStages][Traits::kTileKeys * 4];
  alignas(16) float lse[Traits::kStages][Traits::kTileQueries];
  alignas(16) float minus_delta[Traits::kStages][Traits::kTileQueries];
  QueryTile tile[Traits::kStages];
  BackwardMessage work[2];
  MaskRequest mask_request[Traits::kMaskStages];
  LoaderState loader;
  PairRing mask_place[Traits::kMaskStages];  // of each mask warp
  DqMessage dq_message[kDqMessages];
  std::uint64_t dq_asked[kDqMessages];
  // Of a stage's dQ: full by its tiles, empty (the first) when the one buffer has been read; wide tiles: of a stage's
  // turn to add.
  std::uint64_t dq_full[2], dq_empty[2];
  std::uint64_t work_full[2], work_empty[2];
  std::uint64_t k_full, v_full, keys_empty;
  std::uint64_t q_full[Traits::kStages], q_empty[Traits::kStages];
  std::uint64_t dout_full[Traits::kStages], dout_empty[Traits::kStages];
  std::uint64_t mask_asked[Traits::kMaskStages], mask_full[Traits::kMaskStages], mask_empty[Traits::kMaskStages];
};

template <typename T, int kDim>
__device__ __forceinline__ void init_backward_barriers(BackwardShared<T, kDim>& shared) {
  using Traits = BackwardTraits<kDim>;
  constexpr int kConsumerWarps = 4 * kBackwardGroups;
  for (int i = 0; i < 2; ++i) {
    barrier_init(&shared.work_full[i], 1);
    barrier_init(&shared.work_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < kDqMessages; ++i) barrier_init(&shared.dq_asked[i], 1);
  for (int i = 0; i < 2; ++i) {
    barrier_init(&shared.dq_full[i], Traits::kStagesDq ? 4 * Traits::kDqMakers : 1);
    barrier_init(&shared.dq_empty[i], Traits::kStagesDq ? 1 : kConsumerWarps);
  }
  barrier_init(&shared.k_full, 1);
  barrier_init(&shared.v_full, 1);
  barrier_init(&shared.keys_empty, kConsumerWarps);
  for (int i = 0; i < Traits::kStages; ++i) {
    barrier_init(&shared.q_full[i], 1);
    barrier_init(&shared.q_empty[i], kConsumerWarps);
    barrier_init(&shared.dout_full[i], 1);
    barrier_init(&shared.dout_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < Traits::kMaskStages; ++i) {
    shared.mask_place[i].count = static_cast<std::uint32_t>(i);
    barrier_init(&shared.mask_asked[i], 1);
    barrier_init(&shared.mask_full[i], 1);
    barrier_init(&shared.mask_empty[i], kConsumerWarps);
  }
  shared.loader.stages = shared.loader.units = shared.loader.masks = {};
  barrier_init_fence();
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tiles of the backward kernel, for its launch and for whoever reads the dQ tiles that it leaves.

#include "backend/cuda/params.hpp"

namespace marble::cuda {

inline constexpr int kBackwardGroups = 2;  // consumer warpgroups

template <int kDim>
struct BackwardTraits {
  /// Wide tiles: dK and dV of 128 keys would not fit the registers, so both warpgroups share 64 keys and split columns.
  static constexpr bool kWide = kDim > 128;
  static constexpr int kTileKeys = kWide ? 64 : 128;
  static constexpr int kTileQueries = kDim == 64 ? 128 : 64;
  static constexpr int kKeyTiles = kBlock / kTileKeys;  // of a planning block
  static constexpr int kQueryTiles = kBlock / kTileQueries;
  static constexpr int kStages = 2;      // of Q and dO
  static constexpr int kMaskStages = 2;  // one a mask warp
  static constexpr int kExchanges = kWide ? 3 : 2;
  static constexpr int kThreads = 384;
  static constexpr int kConsumerRegisters = kWide ? 224 : 240;  // dK, dV, S, dP and P of d 128 leave 24
  static constexpr int kLoaderRegisters = kWide ? 56 : 24;
  static constexpr int kKeyBytes = kTileKeys * kDim * 2;
  static constexpr int kQueryBytes = kTileQueries * kDim * 2;

  // A warpgroup's part of a dQ tile is 64 rows by kDqColumns, in the fragment order of wgmma.cuh: 16-byte chunks of
  // four accumulators, [chunk][thread]. Of 128 rows both groups make 64, of wide tiles both make half of the columns.
  // At 128 one makes all, so that dS is read from shared memory once, not once for each half of the columns.
  static constexpr int kDqMakers = kDim == 128 ? 1 : kBackwardGroups;
  static constexpr int kDqColumns = kWide ? kDim / kBackwardGroups : kDim;
  static constexpr int kDqPart = 64 * kDqColumns;
  // Parts go to memory through shared memory and the copy engine; wide tiles leave no room for that.
  static constexpr bool kStagesDq = !kWide;
};

/// The place of a chunk's first element within the 128 rows of a block; its second lies to the right of it, the other
/// two eight rows below.
struct DqPlace {
  int row;
  int column;
};

template <int kDim>
MARBLE_HOST_DEVICE constexpr DqPlace dq_place(int chunk_of_block) {
  using Traits = BackwardTraits<kDim>;
  constexpr int kChunks = Traits::kDqColumns / 8 * 128;  // of a part
  const int part = chunk_of_block / kChunks;
  const int chunk = chunk_of_block % kChunks / 128;
  const int thread = chunk_of_block % 128;
  constexpr int kPartsAcross = kDim / Traits::kDqColumns;
  return {part / kPartsAcross * 64 + thread / 32 * 16 + thread % 32 / 4,
          part % kPartsAcross * Traits::kDqColumns + chunk * 8 + thread % 4 * 2};
}

/// Where an element of a block's 128 rows lies in the block's dQ tiles, in floats: the inverse of dq_place.
template <int kDim>
MARBLE_HOST_DEVICE constexpr int dq_index(int row, int column) {
  using Traits = BackwardTraits<kDim>;
  const int part = row / 64 * (kDim / Traits::kDqColumns) + column / Traits::kDqColumns;
  const int thread = row % 64 / 16 * 32 + row % 8 * 4 + column % 8 / 2;
  const int chunk = column % Traits::kDqColumns / 8;
  return ((part * (Traits::kDqColumns / 8) + chunk) * 128 + thread) * 4 + row % 16 / 8 * 2 + column % 2;
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the forward kernels know of the tile before them.

#include "backend/cuda/params.hpp"

namespace marble::cuda {

enum TileKind : int { kNoTile = 0, kFullTile = 1, kPartialTile = 2 };

/// Full tiles that follow in a row are told by their number, from this on; fewer are kFullTile.
inline constexpr int kShortestRun = 3;

/// Rows of keys still to come of a run of blocks. The run's kind lies in the low bits of its end: the plain kernel's
/// registers are scarce.
struct KeyRun {
  int row;
  int end_and_kind;

  /// Blocks [begin, end).
  MARBLE_HOST_DEVICE static constexpr KeyRun of_blocks(int begin, int end, TileKind kind) {
    return {begin * kBlock, end * kBlock + kind};
  }

  MARBLE_HOST_DEVICE constexpr int kind() const { return end_and_kind % 4; }
  MARBLE_HOST_DEVICE constexpr bool is_over() const { return row + kind() == end_and_kind; }
};

}  // namespace marble::cuda

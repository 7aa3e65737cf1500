// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the forward kernels know of the tile before them.

#include "backend/cuda/params.hpp"

namespace marble::cuda {

enum TileKind : int { kPartialTile = -1, kNoTile = 0, kFullTile = 1 };

/// Rows of keys still to come of a run of blocks. The run's kind lies in the low bits of its end: the plain kernel's
/// registers are scarce.
struct KeyRun {
  int row;
  int end_and_kind;

  /// Blocks [begin, end).
  MARBLE_HOST_DEVICE static constexpr KeyRun of_blocks(int begin, int end, TileKind kind) {
    return {begin * kBlock, end * kBlock + kind - kPartialTile};
  }

  MARBLE_HOST_DEVICE constexpr int kind() const { return low_bits() + kPartialTile; }
  MARBLE_HOST_DEVICE constexpr bool is_over() const { return row + low_bits() == end_and_kind; }

 private:
  MARBLE_HOST_DEVICE constexpr int low_bits() const { return end_and_kind % 4; }
};

}  // namespace marble::cuda

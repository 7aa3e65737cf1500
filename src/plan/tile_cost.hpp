// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a block pair costs on a given hardware.

#include "marble/plan.hpp"

#include <cstdint>

namespace marble {

/// Time of one block pair and one head. Femtoseconds: small blocks of small heads still count.
struct TileTime {
  std::int64_t full_fs = 0;
  std::int64_t partial_fs = 0;
};

/// 4 operations per score and head dimension forward, 10 backward.
[[nodiscard]] constexpr TileTime forward_tile(const Hardware& hardware, std::int64_t block, std::int64_t head_dim) {
  const std::int64_t femto_operations = 4 * block * block * head_dim * 1'000'000;
  return {femto_operations / hardware.forward_full_gflops, femto_operations / hardware.forward_partial_gflops};
}
[[nodiscard]] constexpr TileTime backward_tile(const Hardware& hardware, std::int64_t block, std::int64_t head_dim) {
  const std::int64_t femto_operations = 10 * block * block * head_dim * 1'000'000;
  return {femto_operations / hardware.backward_full_gflops, femto_operations / hardware.backward_partial_gflops};
}

/// A partial block pair's time, forward and backward, in thousandths of a full one's.
[[nodiscard]] constexpr std::int64_t partial_thousandths(const Hardware& hardware) {
  const TileTime forward = forward_tile(hardware, 128, 128), backward = backward_tile(hardware, 128, 128);
  return 1000 * (forward.partial_fs + backward.partial_fs) / (forward.full_fs + backward.full_fs);
}

/// In thousandths of a full block pair, forward and backward.
[[nodiscard]] constexpr std::int64_t tile_cost(const PairDemand& demand, std::int64_t partial_in_thousandths) {
  return demand.full_tiles * 1000 + demand.partial_tiles * partial_in_thousandths;
}

}  // namespace marble

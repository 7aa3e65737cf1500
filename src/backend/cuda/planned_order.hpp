// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The planned order of sums into gradients that units share. Whoever adds to a tile waits for its turn: until all units
// before it in the work array that meet the tile have added. Units are drawn in the order of the array, so a turn only
// depends on units that running CTAs have drawn, and on earlier tiles of the same unit: whatever the number of CTAs and
// their pace, the first unfinished unit never waits. How a unit orders its own tiles does not matter for that.

#include "marble/rank_plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble::cuda {

/// For each item of a work array and each block of its runs, in their order: how many items before it meet the block.
struct PlannedRanks {
  std::vector<std::int32_t> ranks;       // item by item
  std::vector<std::int64_t> item_begin;  // into ranks
};

/// `num_blocks` bounds the blocks that runs name.
inline PlannedRanks planned_ranks(std::span<const Item> items, std::span<const Run> runs, std::int64_t num_blocks) {
  PlannedRanks planned;
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_blocks), 0);
  for (const Item& item : items) {
    planned.item_begin.push_back(static_cast<std::int64_t>(planned.ranks.size()));
    for (const Run& run :
         runs.subspan(static_cast<std::size_t>(item.run_begin), static_cast<std::size_t>(item.run_count)))
      for (std::int32_t block = run.begin; block < run.end; ++block)
        planned.ranks.push_back(counts[static_cast<std::size_t>(block)]++);
  }
  return planned;
}

/// When a unit may add to a tile, and what the tile's counter says afterwards. An item's key tiles take turns; the last
/// one that has keys also passes the turns of those that have none.
struct Turn {
  std::int32_t begin;
  std::int32_t end;
};

MARBLE_HOST_DEVICE constexpr Turn planned_turn(std::int32_t rank, std::int32_t key_tile, std::int32_t key_tiles,
                                               bool is_last_with_keys) {
  const std::int32_t begin = rank * key_tiles + key_tile;
  return {begin, is_last_with_keys ? (rank + 1) * key_tiles : begin + 1};
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a block pair costs, in hundredths of a full one.

#include "marble/plan.hpp"

#include <cstdint>

namespace marble {

inline constexpr std::int64_t kFullTileCost = 100;
inline constexpr std::int64_t kPartialTileCost = 115;

/// Full block pairs that one more contiguous range costs in one step. Small: a run of full blocks costs what dense
/// attention costs, so a range adds little more than the partial blocks where it is cut.
inline constexpr std::int64_t kRangeTiles = 4;

[[nodiscard]] constexpr std::int64_t tile_cost(const PairDemand& demand) {
  return demand.full_tiles * kFullTileCost + demand.partial_tiles * kPartialTileCost;
}

}  // namespace marble

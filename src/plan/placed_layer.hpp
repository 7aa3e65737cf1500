// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A layer kind's mask over the placed sequence: what demands, balances and rank plans are all computed from.

#include "plan/key_blocks.hpp"
#include "plan/rank_rows.hpp"

#include <cstdint>
#include <vector>

namespace marble {

/// Rows and key blocks of every ring rank.
struct PlacedRanks {
  std::vector<Piece> pieces;  // of all, in ascending canonical index
  std::vector<RankRows> rows;
  std::vector<KeyBlocks> key_blocks;
};

struct PlacedLayer : PlacedRanks {
  CanonicalOrder order;
  Visibility visibility;
};

[[nodiscard]] PlacedRanks place_ranks(std::span<const Piece> pieces, std::int32_t ring, const CanonicalOrder& order,
                                      const Visibility& visibility, std::int64_t block, int threads);
[[nodiscard]] PlacedLayer place_layer(const Plan& plan, const MaskRule& rule, int threads);

/// demand[query ring rank * ring + key ring rank]
[[nodiscard]] std::vector<PairDemand> measure_demand(const PlacedRanks& ranks, std::int64_t block, int threads);

/// pairs[query ring rank * ring + key ring rank]: legal pairs.
[[nodiscard]] std::vector<std::int64_t> measure_pairs(const PlacedLayer& placed, int threads);

}  // namespace marble

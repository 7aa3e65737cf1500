// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A layer kind's mask over the placed sequence: what demands, balances and rank plans are all computed from.

#include "plan/key_blocks.hpp"
#include "plan/rank_rows.hpp"

#include <cstdint>
#include <vector>

namespace marble {

struct PlacedLayer {
  CanonicalOrder order;
  Visibility visibility;
  std::vector<RankRows> rows;         // by ring rank
  std::vector<KeyBlocks> key_blocks;  // by ring rank
};

[[nodiscard]] PlacedLayer place_layer(const Plan& plan, const MaskRule& rule, int threads);

/// demand[query ring rank * ring + key ring rank]
[[nodiscard]] std::vector<PairDemand> measure_demand(const PlacedLayer& layer, std::int64_t block, int threads);

/// Legal pairs of `rows`' queries with the keys of `keys`.
[[nodiscard]] std::int64_t count_pairs(const RankRows& rows, const KeyBlocks& keys, const Visibility& visibility);

}  // namespace marble

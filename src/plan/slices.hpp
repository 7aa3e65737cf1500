// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps of a layer: which ring distances travel together, and which rows each brings.

#include "marble/plan.hpp"

#include <cstdint>

namespace marble {

/// The ring rank that ring rank r fetches from at a distance.
[[nodiscard]] constexpr std::int64_t behind(const Plan& plan, std::int64_t r, std::int64_t distance) {
  return (r + plan.mesh.ring - distance) % plan.mesh.ring;
}

/// Rows that ring rank `query` fetches from ring rank `key`, pads excluded.
[[nodiscard]] inline std::int64_t fetched_rows(const Plan& plan, const LayerPlan& layer, std::int64_t query,
                                               std::int64_t key) {
  if (layer.strategy == Strategy::alltoall)
    return layer.demand[static_cast<std::size_t>(query * plan.mesh.ring + key)].needed_rows;
  return plan.ring_tokens[static_cast<std::size_t>(key)];
}

/// Key rows received by all ring ranks.
[[nodiscard]] std::int64_t received_rows(const Plan& plan, const LayerPlan& layer);

/// Sets strategy, slices and slot of a measured layer: one distance a step for a ring, else as many as fit
/// `fetch_tokens` rows on every rank (0: one shard).
void set_strategy(const Plan& plan, LayerPlan& layer, Strategy strategy, std::int64_t fetch_tokens);

}  // namespace marble

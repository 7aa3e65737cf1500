// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps of a layer: which rows travel between which ranks in each. A rank's slice is what it fetches in one step.

#include "marble/plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// The ring rank that ring rank r fetches from at a distance.
[[nodiscard]] constexpr std::int64_t behind(const Plan& plan, std::int64_t r, std::int64_t distance) {
  return (r + plan.mesh.ring - distance) % plan.mesh.ring;
}

[[nodiscard]] inline const PairDemand& demand_of(const Plan& plan, const LayerPlan& layer, std::int64_t query,
                                                 std::int64_t key) {
  return layer.demand[static_cast<std::size_t>(query * plan.mesh.ring + key)];
}

/// Rows that ring rank `query` fetches from ring rank `key`, pads excluded.
[[nodiscard]] inline std::int64_t fetched_rows(const Plan& plan, const LayerPlan& layer, std::int64_t query,
                                               std::int64_t key) {
  if (layer.strategy == Strategy::alltoall) return demand_of(plan, layer, query, key).needed_rows;
  return plan.ring_tokens[static_cast<std::size_t>(key)];
}

/// Key rows received by all ring ranks.
[[nodiscard]] std::int64_t received_rows(const Plan& plan, const LayerPlan& layer);

/// Sets strategy, slices and slot of a measured layer: one distance a step for a ring. Else a rank fetches at most
/// `fetch_tokens` rows (0: one shard) in a step, by distances that are the same on all ranks, or as each rank's own
/// needs fit: whichever levels the steps better.
void set_strategy(const Plan& plan, LayerPlan& layer, Strategy strategy, std::int64_t fetch_tokens);

/// Who fetches from whom in each step, both ways, by rising distance. Step 0 is the ranks' own keys.
class StepPeers {
 public:
  StepPeers(const Plan& plan, const LayerPlan& layer);

  /// Ring ranks whose keys ring rank r attends in a step.
  [[nodiscard]] std::span<const std::int32_t> sources(std::int64_t r, std::int64_t step) const {
    return sources_.at(r * num_steps_ + step);
  }
  /// Ring ranks that attend r's keys in a step.
  [[nodiscard]] std::span<const std::int32_t> targets(std::int64_t r, std::int64_t step) const {
    return targets_.at(r * num_steps_ + step);
  }

 private:
  /// Lists by rank and step, one after another.
  struct Lists {
    std::vector<std::int32_t> ranks;
    std::vector<std::int64_t> begin;

    [[nodiscard]] std::span<const std::int32_t> at(std::int64_t list) const {
      const auto l = static_cast<std::size_t>(list);
      return std::span(ranks).subspan(static_cast<std::size_t>(begin[l]),
                                      static_cast<std::size_t>(begin[l + 1] - begin[l]));
    }
  };
  template <typename PeerAt, typename StepOf>
  [[nodiscard]] Lists make_lists(std::int64_t ring, PeerAt&& peer_at, StepOf&& step_of) const;

  std::int64_t num_steps_;
  Lists sources_, targets_;
};

}  // namespace marble

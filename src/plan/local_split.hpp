// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// In backward a rank's own keys are attended in two parts: the first hides the first fetch, the last hides the return
// of the last slice's gradients, which no other work is left to hide.

#include "marble/plan.hpp"
#include "marble/rank_plan.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace marble {

/// True where some rank's last return takes longer than what one more work costs: a step, and a tail in which
/// multiprocessors run out of units. Then every rank's backward has a step for it. O(ring^2).
[[nodiscard]] bool splits_own_keys(const Plan& plan, const LayerPlan& layer);

/// The share `last / whole` of a ring rank's own block pairs that is attended after the last slice, where a layer
/// splits own keys.
struct LocalSplit {
  std::int64_t last = 0;
  std::int64_t whole = 1;
};
[[nodiscard]] LocalSplit local_split(const Plan& plan, const LayerPlan& layer, std::int64_t ring_rank);

/// Deals items, largest first, to a first and a last part, so that both hold items of every size.
[[nodiscard]] std::pair<std::vector<Item>, std::vector<Item>> split_items(const std::vector<Item>& items,
                                                                          const LocalSplit& split);

}  // namespace marble

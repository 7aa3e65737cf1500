// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Balances of a layer that is not yet part of a plan.

#include "marble/plan.hpp"

#include <cstdint>

namespace marble {

/// Busiest rank over mean: of the total, and of the sum over steps of each step's busiest rank.
struct TwoBalances {
  double total = 1.0;
  double steps = 1.0;
};

/// In tile cost.
[[nodiscard]] TwoBalances tile_balances(const Plan& plan, const LayerPlan& layer);

/// Throws InvalidArgument unless `layer` is a layer kind of the plan.
[[nodiscard]] const LayerPlan& layer_of(const Plan& plan, std::int32_t layer);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The cost model over a layer that is not yet part of a plan.

#include "plan/heads.hpp"
#include "plan/moved.hpp"

#include "marble/cost.hpp"

#include <cstdint>

namespace marble {

[[nodiscard]] LayerCost estimate_layer(const Plan& plan, const LayerPlan& layer, DType dtype);

/// What the layer would take on this mesh with its block pairs spread evenly and every transfer hidden.
[[nodiscard]] std::int64_t ideal_ns(const Plan& plan, const LayerPlan& layer, DType dtype);

/// The caller's tensors and the workspace of one layer's backward, on the fullest rank.
[[nodiscard]] std::int64_t layer_memory_bytes(const Plan& plan, const LayerPlan& layer, DType dtype);

/// The most query heads, and key heads, that any Ulysses rank attends.
struct BusiestHeads {
  std::int64_t q = 0;
  std::int64_t kv = 0;
};
[[nodiscard]] BusiestHeads busiest_heads(const Model& model, std::int32_t ulysses);

}  // namespace marble

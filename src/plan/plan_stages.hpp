// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The stages of make_plan, which the choice runs once for each placement, and once for all strategies of a placement.

#include "marble/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace marble {

/// Throws InvalidArgument on an impossible layout, model, mesh or option.
void check_inputs(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options);

/// A plan without layers: every token has its ring rank and row.
[[nodiscard]] Plan place_model(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options,
                               Placement placement);

/// A layer kind's demand over the placed model; strategy and slices are still open (slices.hpp).
[[nodiscard]] LayerPlan measure_layer(const Plan& plan, const LayerKind& kind, int threads);

/// The checksum that ends a plan's bytes, and is the plan's digest. (A hash of all the bytes would be the same for all
/// plans: FNV-1a over words that end with their own hash is 0.)
[[nodiscard]] std::uint64_t ending_checksum(std::span<const std::byte> plan_bytes);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What plan and simulate print of the cost model.

#include "output.hpp"

#include "marble/cost.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace marble::cli {

/// --hardware: a name that is compiled in, or a file.
struct HardwareFlags {
  std::string source = "h200";

  CLI::Option* add_to(CLI::App& app);
};
[[nodiscard]] Hardware resolve(const HardwareFlags& flags);

[[nodiscard]] constexpr double milliseconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

[[nodiscard]] Json hardware_json(const Hardware& hardware);
[[nodiscard]] Json candidates_json(const Choice& choice);
[[nodiscard]] Json density_json(const MaskProperties& properties);
[[nodiscard]] Json head_budget_json(const Model& model);

/// {forward, backward}: enter_ms, return_ms, leave_ms, steps[]{compute_ms, hop_ms, step_ms}
[[nodiscard]] Json cost_json(const LayerCost& cost);

/// A table of the first `limit` candidates.
void print_candidates(const Choice& choice, std::size_t limit);

/// How far locality, density and heads let a strategy go; one paragraph.
void print_properties(const Plan& plan);

}  // namespace marble::cli

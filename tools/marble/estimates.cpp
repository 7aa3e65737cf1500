// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "estimates.hpp"

#include "marble/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace marble::cli {
namespace {

std::string strategies_of(const Candidate& candidate) {
  std::string names;
  for (const LayerEstimate& layer : candidate.layers) {
    if (!names.empty()) names += "+";
    names += to_string(layer.strategy);
  }
  return names;
}

Json pass_json(const PassCost& pass) {
  Json steps = Json::array();
  for (const StepCost& step : pass.steps)
    steps.push_back({{"compute_ms", milliseconds(step.compute_ns)},
                     {"memory_ms", milliseconds(step.memory_ns)},
                     {"hop_ms", milliseconds(step.hop_ns)},
                     {"step_ms", milliseconds(step.step_ns)}});
  return {{"total_ms", milliseconds(pass.total_ns())},
          {"prepare_ms", milliseconds(pass.prepare_ns)},
          {"enter_ms", milliseconds(pass.enter_ns)},
          {"return_ms", milliseconds(pass.return_ns)},
          {"finish_ms", milliseconds(pass.finish_ns)},
          {"leave_ms", milliseconds(pass.leave_ns)},
          {"steps", steps}};
}

}  // namespace

CLI::Option* HardwareFlags::add_to(CLI::App& app) {
  return app.add_option("--hardware", source, "h100, h200, or a hardware file")->capture_default_str();
}

Hardware resolve(const HardwareFlags& flags) {
  const bool is_file = flags.source.find_first_of("./") != std::string::npos;
  return is_file ? read_hardware(flags.source) : hardware_named(flags.source);
}

Json hardware_json(const Hardware& hardware) {
  return Json::parse(to_json(hardware));
}

Json candidates_json(const Choice& choice) {
  Json candidates = Json::array();
  for (const Candidate& candidate : choice.candidates) {
    Json layers = Json::array();
    for (const LayerEstimate& layer : candidate.layers)
      layers.push_back({{"strategy", to_string(layer.strategy)},
                        {"predicted_ms", milliseconds(layer.total_ns())},
                        {"forward_ms", milliseconds(layer.forward_ns)},
                        {"backward_ms", milliseconds(layer.backward_ns)},
                        {"compute_ms", milliseconds(layer.compute_ns)},
                        {"memory_ms", milliseconds(layer.memory_ns)},
                        {"step_busiest_over_mean", layer.step_busiest_over_mean},
                        {"kv_tokens", layer.kv_tokens}});
    candidates.push_back({{"placement", to_string(candidate.placement)},
                          {"strategy", to_string(candidate.layers.front().strategy)},
                          {"ring", candidate.mesh.ring},
                          {"ulysses", candidate.mesh.ulysses},
                          {"predicted_ms", milliseconds(candidate.model_ns)},
                          {"memory_bytes", candidate.memory_bytes},
                          {"fits", candidate.fits},
                          {"layers", layers}});
  }
  return candidates;
}

Json density_json(const MaskProperties& properties) {
  return {
      {"visible", properties.visible_share}, {"full", properties.full_share}, {"partial", properties.partial_share}};
}

Json head_budget_json(const Model& model) {
  const HeadBudget budget = head_budget(model);
  return {{"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"without_replication", budget.without_replication},
          {"largest", budget.largest},
          {"even", budget.even}};
}

Json cost_json(const LayerCost& cost) {
  return {{"total_ms", milliseconds(cost.total_ns())},
          {"forward", pass_json(cost.forward)},
          {"backward", pass_json(cost.backward)}};
}

void print_candidates(const Choice& choice, std::size_t limit) {
  constexpr const char* kRow = "  {:<11} {:<22} {:>5} x {:<3} {:>12} {:>12} {:>10} {:>9}\n";
  fmt::print(fmt::runtime(kRow), "placement", "strategy", "ring", "U", "all layers", "one layer", "memory", "balance");
  for (std::size_t c = 0; c < std::min(limit, choice.candidates.size()); ++c) {
    const Candidate& candidate = choice.candidates[c];
    const LayerEstimate& first = candidate.layers.front();
    fmt::print(fmt::runtime(kRow), to_string(candidate.placement), strategies_of(candidate), candidate.mesh.ring,
               candidate.mesh.ulysses, fmt::format("{:.2f} ms", milliseconds(candidate.model_ns)),
               fmt::format("{:.3f} ms", milliseconds(first.total_ns())),
               fmt::format("{:.2f} GB{}", static_cast<double>(candidate.memory_bytes) / 1e9, candidate.fits ? "" : "!"),
               fmt::format("{:.3f}", first.step_busiest_over_mean));
  }
  if (choice.candidates.size() > limit) fmt::print("  … and {} more\n", choice.candidates.size() - limit);
}

void print_properties(const Plan& plan) {
  const MaskProperties properties = mask_properties(plan);
  const HeadBudget budget = head_budget(plan.model);
  fmt::print(
      "locality: a rank's queries see {:.1f} % of remote keys; density: {:.2f} % of tiles are visible, of them {:.1f} "
      "% "
      "full and {:.1f} % partial; heads: Ulysses to {} without replicating key heads (evenly at {}), to {} at all\n",
      100.0 * properties.locality, 100.0 * properties.visible_share, 100.0 * properties.full_share,
      100.0 * properties.partial_share, budget.without_replication, fmt::join(budget.even, ", "), budget.largest);
}

}  // namespace marble::cli

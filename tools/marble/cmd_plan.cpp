// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "command.hpp"
#include "estimates.hpp"
#include "flags.hpp"
#include "output.hpp"

#include "marble/cost.hpp"
#include "marble/error.hpp"
#include "marble/plan.hpp"
#include "marble/transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace marble::cli {
namespace {

struct Flags {
  LayoutFlags layout;
  ModelFlags model;
  PlanFlags plan;
  HardwareFlags hardware;
  std::string dtype = "bf16";
  std::string out;
  int threads = 2;
  bool json = false;
};

/// The candidates; the best one's plan with rank 0's rank plan of each layer kind; and the wall times of both.
struct Planned {
  Choice choice;
  Plan plan;
  std::vector<RankPlan> rank_plans;
  double choice_ms = 0.0;
  double planning_ms = 0.0;
};

/// Runs `work` and returns its wall time.
template <typename Work>
double timed(Work&& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Planned make_planned(const Layout& layout, const Model& model, const Flags& flags, DType dtype) {
  PlanOptions options = resolve(flags.plan, flags.threads);
  options.hardware = resolve(flags.hardware);
  Planned planned;
  planned.choice_ms = timed([&] { planned.choice = choose(layout, model, flags.plan.mesh, options, dtype); });
  const Candidate& best = planned.choice.best();
  options.placement = best.placement;
  for (const LayerEstimate& layer : best.layers) options.layer_strategies.push_back(layer.strategy);
  planned.planning_ms = timed([&] {
    planned.plan = make_plan(layout, model, flags.plan.mesh, options);
    for (std::size_t layer = 0; layer < planned.plan.layers.size(); ++layer)
      planned.rank_plans.push_back(make_rank_plan(planned.plan, 0, static_cast<std::int32_t>(layer), flags.threads));
  });
  return planned;
}

Json balance_json(const Balance& balance) {
  return {{"busiest_over_mean", balance.busiest_over_mean},
          {"step_busiest_over_mean", balance.step_busiest_over_mean},
          {"busiest_over_mean_pairs", balance.busiest_over_mean_pairs},
          {"step_busiest_over_mean_pairs", balance.step_busiest_over_mean_pairs}};
}

Json exchange_json(const ExchangeTokens& tokens) {
  return {{"kv_tokens", tokens.kv}, {"ring_kv_tokens", tokens.ring_kv}, {"allgather_kv_tokens", tokens.allgather_kv}};
}

Json layer_json(const Planned& planned, std::int32_t layer) {
  const Plan& plan = planned.plan;
  const LayerEstimate& estimate = planned.choice.best().layers[static_cast<std::size_t>(layer)];
  const MaskProperties properties = mask_properties(plan, layer);
  const LayerPlan& layer_plan = plan.layers[static_cast<std::size_t>(layer)];
  return {{"window", layer_plan.kind.rule.window},
          {"clamp", layer_plan.kind.rule.clamp},
          {"heads", plan.model.heads},
          {"kv_heads", plan.model.kv_heads},
          {"count", layer_plan.kind.count},
          {"strategy", to_string(layer_plan.strategy)},
          {"mask_test", layer_plan.uses_tracks ? "tracks" : "range"},
          {"legal_pairs", count_legal_pairs(plan.layout, layer_plan.kind.rule)},
          {"balance", balance_json(balance(plan, layer))},
          {"exchange", exchange_json(exchange_tokens(plan, layer))},
          {"predicted_ms", milliseconds(estimate.total_ns())},
          {"why", estimate.why},
          {"locality", properties.locality},
          {"density", density_json(properties)}};
}

Json steps_json(const Plan& plan) {
  Json steps = Json::array();
  for (const auto& work : step_pairs(plan)) steps.push_back({{"work", work}});
  return steps;
}

std::vector<PossibleRung> rungs_of(const Mesh& mesh) {
  return possible_rungs(mesh.num_ranks(), mesh.ranks_per_node);
}

Json rungs_json(const Mesh& mesh) {
  Json rungs = Json::array();
  for (const PossibleRung& possible : rungs_of(mesh))
    rungs.push_back({{"rung", to_string(possible.rung)}, {"needs", possible.needs}});
  return rungs;
}

Json plan_json(const Planned& planned, DType dtype) {
  const Plan& plan = planned.plan;
  Json layers = Json::array();
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
    layers.push_back(layer_json(planned, static_cast<std::int32_t>(layer)));
  }
  return {{"layout", layout_json(plan.layout)},
          {"mesh",
           {{"ring", plan.mesh.ring}, {"ulysses", plan.mesh.ulysses}, {"ranks_per_node", plan.mesh.ranks_per_node}}},
          {"rungs", rungs_json(plan.mesh)},
          {"canonical", to_string(plan.canonical)},
          {"placement", to_string(plan.placement)},
          {"layers", layers},
          {"strategy", to_string(plan.layers.front().strategy)},
          {"planning_ms", planned.planning_ms},
          {"choice_ms", planned.choice_ms},
          {"predicted_ms", milliseconds(planned.choice.best().model_ns)},
          {"why", planned.choice.why},
          {"balance", balance_json(balance(plan))},
          {"exchange", exchange_json(exchange_tokens(plan))},
          {"memory_bytes", memory_bytes(plan, dtype)},
          {"locality", mask_properties(plan).locality},
          {"density", density_json(mask_properties(plan))},
          {"head_budget", head_budget_json(plan.model)},
          {"steps", steps_json(plan)},
          {"candidates", candidates_json(planned.choice)},
          {"left_out", planned.choice.left_out},
          {"hardware", hardware_json(plan.hardware)},
          {"block", plan.block},
          {"rows_per_rank", plan.rows},
          {"ring_tokens", plan.ring_tokens},
          {"digest", fmt::format("{:016x}", plan.digest)}};
}

constexpr const char* kLayerRow = "{:>6} {:>7} {:<9} {:>17} {:>9} {:>9} {:>9} {:>9} {:>14}\n";

void print_layer(const Plan& plan, std::int32_t layer) {
  const LayerPlan& layer_plan = plan.layers[static_cast<std::size_t>(layer)];
  const Balance levels = balance(plan, layer);
  const ExchangeTokens tokens = exchange_tokens(plan, layer);
  const std::int64_t window = layer_plan.kind.rule.window;
  const auto level = [](double value) { return fmt::format("{:.4f}", value); };
  fmt::print(fmt::runtime(kLayerRow), layer_plan.kind.count, window == 0 ? "none" : fmt::format("{}", window),
             to_string(layer_plan.strategy), grouped(count_legal_pairs(plan.layout, layer_plan.kind.rule)),
             level(levels.busiest_over_mean_pairs), level(levels.busiest_over_mean),
             level(levels.step_busiest_over_mean_pairs), level(levels.step_busiest_over_mean), grouped(tokens.kv));
}

void print_layers(const Plan& plan) {
  fmt::print("{:42}{:>20}{:>20}\n", "", "busiest over mean", "same, step by step");
  fmt::print(fmt::runtime(kLayerRow), "layers", "window", "strategy", "legal pairs", "pairs", "tiles", "pairs", "tiles",
             "keys received");
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) print_layer(plan, static_cast<std::int32_t>(layer));
}

void print_steps(const Plan& plan) {
  constexpr std::size_t kRanksShown = 8;
  const auto steps = step_pairs(plan);
  fmt::print("\nlegal pairs per step and ring rank, one head, first layer kind:\n");
  for (std::size_t step = 0; step < steps.size(); ++step) {
    std::string row;
    const std::size_t shown = std::min(steps[step].size(), kRanksShown);
    for (std::size_t rank = 0; rank < shown; ++rank) row += fmt::format(" {:>13}", grouped(steps[step][rank]));
    fmt::print("  step {:<3}{}{}\n", step, row, shown < steps[step].size() ? " …" : "");
  }
}

/// How the nccl transport would move bytes. This machine need not be one of those that will run the plan.
void print_rungs(const Mesh& mesh) {
  const std::int32_t ranks = mesh.num_ranks(), nodes = (ranks + mesh.ranks_per_node - 1) / mesh.ranks_per_node;
  if (ranks == 1) return;
  fmt::print("\nrungs of transport nccl between {} ranks on {} node{}; all take the first that all of them can:\n",
             ranks, nodes, nodes == 1 ? "" : "s");
  for (const PossibleRung& possible : rungs_of(mesh))
    fmt::print("  {:<9} needs {}\n", to_string(possible.rung), possible.needs);
}

void print_plan(const NamedLayout& named, const Planned& planned, DType dtype) {
  const Plan& plan = planned.plan;
  fmt::print("{}", layout_summary(named));
  fmt::print("mesh: ring {} x ulysses {}; canonical order {}, placement {}, {} rows a rank in blocks of {}\n\n",
             plan.mesh.ring, plan.mesh.ulysses, to_string(plan.canonical), to_string(plan.placement), plan.rows,
             plan.block);
  print_layers(plan);
  print_steps(plan);
  fmt::print("\ncandidates on {}, forward and backward:\n", plan.hardware.name);
  print_candidates(planned.choice, 8);
  fmt::print("why: {}\n", planned.choice.why);
  for (const LayerEstimate& layer : planned.choice.best().layers) fmt::print("     {}\n", layer.why);
  print_properties(plan);
  print_rungs(plan.mesh);
  fmt::print("\nplanned in {:.1f} ms, chosen in {:.1f} ms; {:.1f} MiB a rank in {} backward\n", planned.planning_ms,
             planned.choice_ms, static_cast<double>(memory_bytes(plan, dtype)) / (1024.0 * 1024.0), to_string(dtype));
}

int run_plan(const Flags& flags) {
  const DType dtype = parse_dtype(flags.dtype);
  const NamedLayout named = resolve(flags.layout);
  const Planned planned = make_planned(named.layout, resolve(flags.model, named.generator), flags, dtype);
  if (!flags.out.empty()) write_bytes(flags.out, to_bytes(planned.plan));
  if (flags.json) {
    print_json(plan_json(planned, dtype));
  } else {
    print_plan(named, planned, dtype);
  }
  return 0;
}

}  // namespace

Run set_up_plan(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  flags->layout.add_to(app);
  flags->model.add_to(app);
  flags->plan.add_to(app);
  flags->hardware.add_to(app);
  app.add_option("--dtype", flags->dtype, "fp32, bf16 or fp16, for memory_bytes")->capture_default_str();
  app.add_option("--threads", flags->threads, "Planner threads")->capture_default_str();
  app.add_option("--out", flags->out, "Write the plan to this file, for verify --plan");
  app.add_flag("--json", flags->json, "Print one JSON document");
  return [flags] { return run_plan(*flags); };
}

}  // namespace marble::cli

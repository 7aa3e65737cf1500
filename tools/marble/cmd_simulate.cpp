// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Predicts layer times at any scale, from the code that plans: nothing runs.

#include "command.hpp"
#include "estimates.hpp"
#include "flags.hpp"
#include "output.hpp"

#include "marble/cost.hpp"
#include "marble/error.hpp"

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
  HardwareFlags hardware;
  std::int32_t gpus = 1;
  std::int32_t ranks_per_node = 8;
  std::optional<std::int32_t> ulysses;
  std::string canonical = "auto", placement = "auto", strategy = "auto";
  std::string dtype = "bf16";
  int threads = 2;
  bool json = false;
};

/// The candidates, and the plan of the best one.
struct Simulated {
  Choice choice;
  Plan plan;
  double choice_ms = 0.0;
  std::vector<std::string> warnings;
};

std::vector<std::string> find_warnings(const Layout& layout, const Plan& plan) {
  std::vector<std::string> warnings;
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    std::int64_t length = 0;
    for (const Span& span : layout.sample(s)) length += span.length;
    longest = std::max(longest, length);
  }
  const std::int64_t tokens = layout.num_tokens();
  if (longest <= 1 || tokens < plan.mesh.num_ranks())
    warnings.push_back(fmt::format(
        "{} tokens over {} ranks, the longest sample has {}: a rank with one query has nothing to overlap a hop with, "
        "as in single-token decoding; sequence parallelism is for training and prefill",
        tokens, plan.mesh.num_ranks(), longest));
  else if (plan.mesh.ring > 1 && tokens < std::int64_t{plan.mesh.ring} * plan.block)
    warnings.push_back(fmt::format("a ring rank holds {} tokens, less than a block of {}: fixed costs dominate",
                                   tokens / plan.mesh.ring, plan.block));
  return warnings;
}

Simulated simulate(const Layout& layout, const Model& model, const Flags& flags, DType dtype) {
  PlanFlags plan_flags;
  plan_flags.canonical = flags.canonical;
  plan_flags.placement = flags.placement;
  plan_flags.strategy = flags.strategy;
  PlanOptions options = resolve(plan_flags, flags.threads);
  options.hardware = resolve(flags.hardware);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Simulated simulated;
  if (flags.ulysses) {
    require(*flags.ulysses >= 1 && flags.gpus % *flags.ulysses == 0, "ulysses {} does not divide {} GPUs",
            *flags.ulysses, flags.gpus);
    simulated.choice =
        choose(layout, model,
               {.ring = flags.gpus / *flags.ulysses, .ulysses = *flags.ulysses, .ranks_per_node = flags.ranks_per_node},
               options, dtype);
  } else {
    simulated.choice = choose_mesh(layout, model, flags.gpus, flags.ranks_per_node, options, dtype);
  }
  simulated.choice_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  const Candidate& best = simulated.choice.best();
  options.placement = best.placement;
  for (const LayerEstimate& layer : best.layers) options.layer_strategies.push_back(layer.strategy);
  simulated.plan = make_plan(layout, model, best.mesh, options);
  simulated.warnings = find_warnings(layout, simulated.plan);
  return simulated;
}

/// null where not even the whole pack in one shard would hide a hop.
Json shard_json(const SmallestShard& shard, std::int64_t tokens) {
  const auto entry = [&](std::int64_t value) { return value > tokens ? Json() : Json(value); };
  return {{"forward_node", entry(shard.forward_node)},
          {"forward_network", entry(shard.forward_network)},
          {"backward_node", entry(shard.backward_node)},
          {"backward_network", entry(shard.backward_network)}};
}

Json simulated_json(const Simulated& simulated, DType dtype) {
  const Plan& plan = simulated.plan;
  const Candidate& best = simulated.choice.best();
  Json layers = Json::array();
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    const auto index = static_cast<std::int32_t>(l);
    const PaperChoice paper = paper_choice(plan.layout, plan.layers[l].kind.rule);
    layers.push_back(
        {{"window", plan.layers[l].kind.rule.window},
         {"count", plan.layers[l].kind.count},
         {"strategy", to_string(plan.layers[l].strategy)},
         {"predicted_ms", milliseconds(best.layers[l].total_ns())},
         {"why", best.layers[l].why},
         {"paper", {{"strategy", to_string(paper.strategy)}, {"placement", to_string(paper.placement)}}},
         {"cost", cost_json(estimate(plan, index, dtype))},
         {"locality", mask_properties(plan, index).locality},
         {"density", density_json(mask_properties(plan, index))},
         {"smallest_shard_tokens", shard_json(smallest_shard(plan, index, dtype), plan.layout.num_tokens())}});
  }
  return {{"layout", layout_json(plan.layout)},
          {"gpus", plan.mesh.num_ranks()},
          {"ranks_per_node", plan.mesh.ranks_per_node},
          {"hardware", hardware_json(plan.hardware)},
          {"placement", to_string(best.placement)},
          {"mesh", {{"ring", best.mesh.ring}, {"ulysses", best.mesh.ulysses}}},
          {"predicted_ms", milliseconds(best.model_ns)},
          {"memory_bytes", best.memory_bytes},
          {"fits", best.fits},
          {"why", simulated.choice.why},
          {"layers", layers},
          {"head_budget", head_budget_json(plan.model)},
          {"shard_tokens", plan.rows * plan.mesh.ulysses},
          {"choice_ms", simulated.choice_ms},
          {"candidates", candidates_json(simulated.choice)},
          {"left_out", simulated.choice.left_out},
          {"warnings", simulated.warnings}};
}

void print_steps(const PassCost& pass, const char* name) {
  constexpr std::size_t kShown = 8;
  fmt::print("{}: {:.3f} ms; in {:.3f}, out {:.3f}; steps (compute | hop):", name, milliseconds(pass.total_ns()),
             milliseconds(pass.prepare_ns + pass.enter_ns),
             milliseconds(pass.return_ns + pass.finish_ns + pass.leave_ns));
  for (std::size_t s = 0; s < std::min(kShown, pass.steps.size()); ++s)
    fmt::print(" {:.3f}|{:.3f}", milliseconds(pass.steps[s].compute_ns), milliseconds(pass.steps[s].hop_ns));
  fmt::print("{}\n", pass.steps.size() > kShown ? " …" : "");
}

void print_simulated(const NamedLayout& named, const Simulated& simulated, DType dtype) {
  const Plan& plan = simulated.plan;
  const Candidate& best = simulated.choice.best();
  fmt::print("{}{} GPUs {} in nodes of {}; forward and backward\n\n", layout_summary(named), plan.mesh.num_ranks(),
             plan.hardware.name, plan.mesh.ranks_per_node);
  print_candidates(simulated.choice, 20);
  fmt::print("\n{}\n", simulated.choice.why);
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    const auto index = static_cast<std::int32_t>(l);
    const LayerCost cost = estimate(plan, index, dtype);
    const std::int64_t window = plan.layers[l].kind.rule.window;
    fmt::print("\n{} layers, window {}: {}\n", plan.layers[l].kind.count,
               window == 0 ? "none" : fmt::format("{}", window), best.layers[l].why);
    print_steps(cost.forward, "  forward");
    print_steps(cost.backward, "  backward");
    const SmallestShard shard = smallest_shard(plan, index, dtype);
    if (shard.forward_network > plan.layout.num_tokens())
      fmt::print("  no ring of whole shards hides its hops: ranks see too little of each other\n");
    else if (shard.forward_network > 0)
      fmt::print(
          "  work hides a ring's hop from {} tokens a shard on inside a node, {} across nodes ({} and {} in "
          "backward); this shard has {}\n",
          grouped(shard.forward_node), grouped(shard.forward_network), grouped(shard.backward_node),
          grouped(shard.backward_network), grouped(plan.rows * plan.mesh.ulysses));
  }
  fmt::print("\n");
  print_properties(plan);
  for (const std::string& reason : simulated.choice.left_out) fmt::print("left out: {}\n", reason);
  for (const std::string& warning : simulated.warnings) fmt::print("warning: {}\n", warning);
  fmt::print("chosen in {:.0f} ms\n", simulated.choice_ms);
}

int run_simulate(const Flags& flags) {
  const DType dtype = parse_dtype(flags.dtype);
  const NamedLayout named = resolve(flags.layout);
  const Simulated simulated = simulate(named.layout, resolve(flags.model, named.generator), flags, dtype);
  if (flags.json)
    print_json(simulated_json(simulated, dtype));
  else
    print_simulated(named, simulated, dtype);
  return 0;
}

}  // namespace

Run set_up_simulate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  flags->layout.add_to(app);
  flags->model.add_to(app);
  flags->hardware.add_to(app);
  app.add_option("--gpus", flags->gpus, "GPUs in all, 1 to 1024")->required();
  app.add_option("--ranks-per-node", flags->ranks_per_node, "GPUs of a node")->capture_default_str();
  app.add_option("--ulysses", flags->ulysses, "Only this Ulysses degree (default: all that stay inside a node)");
  app.add_option("--canonical", flags->canonical, "auto, sequence or stack")->capture_default_str();
  app.add_option("--placement", flags->placement, "Only this placement")->capture_default_str();
  app.add_option("--strategy", flags->strategy, "Only this strategy")->capture_default_str();
  app.add_option("--dtype", flags->dtype, "fp32, bf16 or fp16")->capture_default_str();
  app.add_option("--threads", flags->threads, "Planner threads")->capture_default_str();
  app.add_flag("--json", flags->json, "Print one JSON document");
  return [flags] { return run_simulate(*flags); };
}

}  // namespace marble::cli

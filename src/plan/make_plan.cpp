// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/heads.hpp"
#include "plan/placed_layer.hpp"
#include "plan/placement.hpp"
#include "plan/plan_stages.hpp"
#include "plan/slices.hpp"
#include "plan/tile_cost.hpp"

#include "marble/cost.hpp"
#include "marble/error.hpp"
#include "marble/plan.hpp"

#include <algorithm>

namespace marble {
namespace {

void check(const Model& model) {
  require(model.heads >= 1, "heads {} is below 1", model.heads);
  require(model.kv_heads >= 1 && model.heads % model.kv_heads == 0, "heads {} is not a multiple of kv_heads {}",
          model.heads, model.kv_heads);
  require(model.head_dim >= 1 && model.head_dim <= 256, "head_dim {} is not in 1..256", model.head_dim);
  require(!model.layers.empty(), "the model has no layers; give at least one layer kind");
  for (const LayerKind& kind : model.layers) {
    validate(kind.rule);
    require(kind.count >= 1, "layer count {} is below 1", kind.count);
  }
}

void check(const Mesh& mesh, const Model& model) {
  require(mesh.ring >= 1, "ring {} is below 1", mesh.ring);
  require(mesh.ulysses >= 1, "ulysses {} is below 1", mesh.ulysses);
  require(mesh.ring <= 4096 && mesh.ulysses <= 4096 && mesh.num_ranks() <= 4096,
          "{} x {} ranks are more than the supported 4096", mesh.ring, mesh.ulysses);
  require(mesh.ulysses <= model.heads, "ulysses {} exceeds the {} query heads; the largest supported degree is {}",
          mesh.ulysses, model.heads, model.heads);
  require(mesh.ranks_per_node >= 1, "ranks_per_node {} is below 1", mesh.ranks_per_node);
}

void check(const PlanOptions& options, const Model& model) {
  require(options.block >= 1 && options.block <= 256, "block {} is not in 1..256", options.block);
  require(options.stripe >= 1 && options.block % options.stripe == 0,
          "stripe {} does not divide block {}; the nearest supported stripe is {}", options.stripe, options.block,
          options.block);
  require(options.fetch_tokens >= 0, "fetch_tokens {} is negative; 0 means one shard", options.fetch_tokens);
  require(options.threads >= 1, "threads {} is below 1", options.threads);
  require(options.layer_strategies.empty() || options.layer_strategies.size() == model.layers.size(),
          "{} layer strategies are given for {} layer kinds", options.layer_strategies.size(), model.layers.size());
  validate(options.hardware);
  if (!model.order_dependent) return;
  require(options.canonical.value_or(Canonical::sequence) == Canonical::sequence,
          "canonical stack is impossible: the model has layers that depend on token order; use sequence");
  const Placement placement = options.placement.value_or(Placement::contiguous);
  require(placement == Placement::contiguous,
          "placement {} is impossible: the model has layers that depend on token order; use contiguous",
          to_string(placement));
}

/// tau in legal pairs of one head: what a full block pair's time buys, over all layers, whose pairs are summed.
std::int64_t range_cost(const Plan& plan) {
  const TileTime forward = forward_tile(plan.hardware, plan.block, plan.model.head_dim);
  const TileTime backward = backward_tile(plan.hardware, plan.block, plan.model.head_dim);
  const std::int64_t tile_fs = std::max<std::int64_t>(1, forward.full_fs + backward.full_fs);
  const std::int64_t heads = (plan.model.heads + plan.mesh.ulysses - 1) / plan.mesh.ulysses;
  std::int64_t layers = 0;
  for (const LayerKind& kind : plan.model.layers) layers += kind.count;
  const __int128 pairs = static_cast<__int128>(plan.hardware.range_ns) * 1'000'000 * plan.block * plan.block * layers;
  return static_cast<std::int64_t>(std::min<__int128>(pairs / tile_fs / heads, std::int64_t{1} << 50));
}

void place_tokens(Plan& plan, const PlanOptions& options) {
  const CanonicalOrder order = canonical_order(plan.layout, plan.canonical);
  std::vector<LayerVisibility> layers;
  for (const LayerKind& kind : plan.model.layers)
    layers.push_back({make_visibility(order, plan.canonical, kind.rule), kind.count});
  plan.pieces = place(plan.placement, {.order = order,
                                       .layers = layers,
                                       .ring = plan.mesh.ring,
                                       .block = plan.block,
                                       .stripe = options.stripe,
                                       .range_cost = range_cost(plan),
                                       .partial_cost = partial_thousandths(plan.hardware),
                                       .threads = options.threads});
  plan.ring_tokens.assign(static_cast<std::size_t>(plan.mesh.ring), 0);
  for (const Piece& piece : plan.pieces) plan.ring_tokens[static_cast<std::size_t>(piece.ring_rank)] += piece.length;
  const std::int64_t shard = ring_rows(order.num_tokens, plan.mesh.ring, plan.block);
  plan.rows = (shard + plan.mesh.ulysses - 1) / plan.mesh.ulysses;
}

}  // namespace

Model model_of(const GeneratorInfo& generator) {
  Model model{.heads = generator.heads,
              .kv_heads = generator.kv_heads,
              .head_dim = generator.head_dim,
              .layers = {},
              .order_dependent = generator.order_dependent};
  for (const GeneratorLayer& layer : generator.layers) model.layers.push_back({{.window = layer.window}, layer.count});
  return model;
}

void check_inputs(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options) {
  validate(layout);
  check(model);
  check(mesh, model);
  check(options, model);
}

Plan place_model(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options,
                 Placement placement) {
  Plan plan{.layout = layout, .model = model, .mesh = mesh, .hardware = options.hardware, .block = options.block};
  plan.canonical = options.canonical.value_or(model.order_dependent ? Canonical::sequence : Canonical::stack);
  plan.placement = placement;
  plan.keep = options.keep;
  place_tokens(plan, options);
  return plan;
}

LayerPlan measure_layer(const Plan& plan, const LayerKind& kind, int threads) {
  LayerPlan layer{.kind = kind};
  const PlacedLayer placed = place_layer(plan, kind.rule, threads);
  layer.uses_tracks = !placed.visibility.single_range;
  layer.demand = measure_demand(placed, plan.block, threads);
  return layer;
}

Plan make_plan(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options) {
  check_inputs(layout, model, mesh, options);
  std::vector<Strategy> strategies = options.layer_strategies;
  if (strategies.empty() && options.strategy) strategies.assign(model.layers.size(), *options.strategy);
  std::optional<Placement> placement = options.placement;
  if (model.order_dependent) placement = Placement::contiguous;
  if (!placement || strategies.empty()) {
    const Candidate best = choose(layout, model, mesh, options).best();
    placement = best.placement;
    strategies.clear();
    for (const LayerEstimate& layer : best.layers) strategies.push_back(layer.strategy);
  }
  Plan plan = place_model(layout, model, mesh, options, *placement);
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    LayerPlan& layer = plan.layers.emplace_back(measure_layer(plan, model.layers[l], options.threads));
    set_strategy(plan, layer, strategies[l], options.fetch_tokens);
  }
  plan.digest = ending_checksum(to_bytes(plan));
  return plan;
}

}  // namespace marble

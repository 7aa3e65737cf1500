// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "base/fnv.hpp"
#include "plan/heads.hpp"
#include "plan/placed_layer.hpp"
#include "plan/placement.hpp"
#include "plan/tile_cost.hpp"

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
  if (!model.order_dependent) return;
  require(options.canonical.value_or(Canonical::sequence) == Canonical::sequence,
          "canonical stack is impossible: the model has layers that depend on token order; use sequence");
  require(options.placement.value_or(Placement::contiguous) == Placement::contiguous,
          "placement {} is impossible: the model has layers that depend on token order; use contiguous",
          to_string(*options.placement));
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
                                       .range_cost = kRangeTiles * plan.block * plan.block,
                                       .threads = options.threads});
  plan.ring_tokens.assign(static_cast<std::size_t>(plan.mesh.ring), 0);
  for (const Piece& piece : plan.pieces) plan.ring_tokens[static_cast<std::size_t>(piece.ring_rank)] += piece.length;
  const std::int64_t shard = ring_rows(order.num_tokens, plan.mesh.ring, plan.block);
  plan.rows = (shard + plan.mesh.ulysses - 1) / plan.mesh.ulysses;
}

/// Rows that ring rank r's fetch from distance d takes in its slot: whole blocks.
std::int64_t fetch_rows(const Plan& plan, const LayerPlan& layer, std::int64_t r, std::int64_t d) {
  const std::int64_t ring = plan.mesh.ring, j = (r + ring - d) % ring;
  if (layer.strategy == Strategy::alltoall)
    return layer.demand[static_cast<std::size_t>(r * ring + j)].needed_blocks * plan.block;
  const std::int64_t tokens = plan.ring_tokens[static_cast<std::size_t>(j)];
  return (tokens + plan.block - 1) / plan.block * plan.block;
}

/// Groups the ring distances into steps: one each for a ring, else as many as fit the cap on every rank.
void cut_slices(const Plan& plan, LayerPlan& layer, std::int64_t cap) {
  const std::int32_t ring = plan.mesh.ring;
  layer.slices = {1};
  layer.slot_rows = 0;
  std::vector<std::int64_t> filled(static_cast<std::size_t>(ring), 0);
  for (std::int32_t d = 1; d < ring; ++d) {
    bool fits = layer.strategy != Strategy::ring && d > 1;
    for (std::int32_t r = 0; r < ring && fits; ++r)
      fits = filled[static_cast<std::size_t>(r)] + fetch_rows(plan, layer, r, d) <= cap;
    if (!fits) {
      if (d > 1) layer.slices.push_back(d);
      std::fill(filled.begin(), filled.end(), 0);
    }
    for (std::int32_t r = 0; r < ring; ++r) {
      filled[static_cast<std::size_t>(r)] += fetch_rows(plan, layer, r, d);
      layer.slot_rows = std::max(layer.slot_rows, filled[static_cast<std::size_t>(r)]);
    }
  }
  layer.slot_rows > 0 ? layer.slices.push_back(ring) : layer.slices.resize(1);
}

LayerPlan plan_layer(const Plan& plan, const LayerKind& kind, const PlanOptions& options) {
  LayerPlan layer{.kind = kind, .strategy = options.strategy.value_or(Strategy::ring)};
  const PlacedLayer placed = place_layer(plan, kind.rule, options.threads);
  layer.uses_tracks = !placed.visibility.single_range;
  layer.demand = measure_demand(placed, plan.block, options.threads);
  const std::int64_t shard = ring_rows(plan.layout.num_tokens(), plan.mesh.ring, plan.block);
  cut_slices(plan, layer, options.fetch_tokens > 0 ? options.fetch_tokens : shard);
  return layer;
}

}  // namespace

Plan make_plan(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options) {
  validate(layout);
  check(model);
  check(mesh, model);
  check(options, model);
  Plan plan{.layout = layout, .model = model, .mesh = mesh, .block = options.block};
  plan.canonical = options.canonical.value_or(model.order_dependent ? Canonical::sequence : Canonical::stack);
  plan.placement = options.placement.value_or(model.order_dependent ? Placement::contiguous : Placement::ptrr);
  plan.keep = options.keep;
  place_tokens(plan, options);
  for (const LayerKind& kind : model.layers) plan.layers.push_back(plan_layer(plan, kind, options));
  plan.digest = fnv1a_words(kFnvOffset, to_bytes(plan));
  return plan;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// What a plan says of itself: balances, steps, bytes, positions.

#include "plan/balance.hpp"

#include "plan/placed_layer.hpp"
#include "plan/slices.hpp"
#include "plan/tile_cost.hpp"

#include "marble/error.hpp"
#include "marble/plan.hpp"

#include <algorithm>
#include <numeric>

namespace marble {
namespace {

using Matrix = std::vector<std::int64_t>;  // [query ring rank][key ring rank]

/// Sums a matrix over the keys that ring ranks attend in each step: result[step][ring rank].
std::vector<std::vector<std::int64_t>> per_step(const Plan& plan, const LayerPlan& layer, const Matrix& matrix) {
  const auto ring = static_cast<std::size_t>(plan.mesh.ring);
  std::vector<std::vector<std::int64_t>> steps(static_cast<std::size_t>(layer.num_slices) + 1);
  for (std::vector<std::int64_t>& step : steps) step.assign(ring, 0);
  for (std::size_t r = 0; r < ring; ++r)
    for (std::size_t key = 0; key < ring; ++key)
      steps[static_cast<std::size_t>(layer.demand[r * ring + key].slice)][r] += matrix[r * ring + key];
  return steps;
}

TwoBalances measure(const std::vector<std::vector<std::int64_t>>& steps) {
  std::vector<std::int64_t> totals(steps.front().size(), 0);
  std::int64_t step_busiest = 0;
  for (const std::vector<std::int64_t>& step : steps) {
    for (std::size_t r = 0; r < step.size(); ++r) totals[r] += step[r];
    step_busiest += *std::max_element(step.begin(), step.end());
  }
  const std::int64_t sum = std::accumulate(totals.begin(), totals.end(), std::int64_t{0});
  if (sum == 0) return {};
  const double mean = static_cast<double>(sum) / static_cast<double>(totals.size());
  return {static_cast<double>(*std::max_element(totals.begin(), totals.end())) / mean,
          static_cast<double>(step_busiest) / mean};
}

constexpr int kThreads = 2;

}  // namespace

const LayerPlan& layer_of(const Plan& plan, std::int32_t layer) {
  require(layer >= 0 && layer < static_cast<std::int32_t>(plan.layers.size()), "layer kind {} is not in 0..{}", layer,
          plan.layers.size() - 1);
  return plan.layers[static_cast<std::size_t>(layer)];
}

std::vector<std::vector<std::int64_t>> step_pairs(const Plan& plan, std::int32_t layer) {
  const LayerPlan& of_layer = layer_of(plan, layer);
  return per_step(plan, of_layer, measure_pairs(place_layer(plan, of_layer.kind.rule, kThreads), kThreads));
}

TwoBalances tile_balances(const Plan& plan, const LayerPlan& layer) {
  const std::int64_t partial = partial_thousandths(plan.hardware);
  Matrix cost(layer.demand.size());
  std::transform(layer.demand.begin(), layer.demand.end(), cost.begin(),
                 [&](const PairDemand& demand) { return tile_cost(demand, partial); });
  return measure(per_step(plan, layer, cost));
}

Balance balance(const Plan& plan, std::int32_t layer) {
  const TwoBalances tiles = tile_balances(plan, layer_of(plan, layer));
  const TwoBalances pairs = measure(step_pairs(plan, layer));
  return {tiles.total, tiles.steps, pairs.total, pairs.steps};
}

ExchangeTokens exchange_tokens(const Plan& plan, std::int32_t layer) {
  const LayerPlan& of_layer = layer_of(plan, layer);
  const std::int64_t tokens = plan.layout.num_tokens(), ring = plan.mesh.ring;
  ExchangeTokens result;
  result.ring_kv = result.allgather_kv = tokens * (ring - 1);
  result.kv = received_rows(plan, of_layer);
  return result;
}

std::vector<std::int64_t> rank_positions(const Plan& plan, std::int32_t rank) {
  require(rank >= 0 && rank < plan.mesh.num_ranks(), "rank {} is not in 0..{}", rank, plan.mesh.num_ranks() - 1);
  const std::int32_t ring_rank = rank / plan.mesh.ulysses;
  const std::int64_t begin = rank % plan.mesh.ulysses * plan.rows;
  const std::int64_t end = std::min(begin + plan.rows, plan.ring_tokens[static_cast<std::size_t>(ring_rank)]);
  const CanonicalOrder order = canonical_order(plan.layout, plan.canonical);
  std::vector<std::int64_t> result;
  auto span = order.spans.begin();
  for (const Piece& piece : pieces_of(plan, ring_rank)) {
    const std::int64_t last = std::min(piece.length, end - piece.row);
    for (std::int64_t i = std::max<std::int64_t>(0, begin - piece.row); i < last; ++i) {
      const std::int64_t canonical = piece.canonical + i;
      while (span->canonical_end() <= canonical) ++span;
      result.push_back(canonical - span->shift());
    }
  }
  return result;
}

}  // namespace marble

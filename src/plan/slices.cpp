// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/slices.hpp"

#include "plan/placement.hpp"

#include <algorithm>
#include <numeric>

namespace marble {
namespace {

/// Rows that ring rank r's fetch from distance d takes in its slot: whole blocks.
std::int64_t fetch_rows(const Plan& plan, const LayerPlan& layer, std::int64_t r, std::int64_t d) {
  const std::int64_t ring = plan.mesh.ring, j = behind(plan, r, d);
  if (layer.strategy == Strategy::alltoall)
    return layer.demand[static_cast<std::size_t>(r * ring + j)].needed_blocks * plan.block;
  const std::int64_t tokens = plan.ring_tokens[static_cast<std::size_t>(j)];
  return (tokens + plan.block - 1) / plan.block * plan.block;
}

/// Rows that each ring rank moves one way in each step, as they are dealt to steps.
class FilledSteps {
 public:
  FilledSteps(std::int32_t ring, std::int64_t cap) : cap_(cap), rows_(static_cast<std::size_t>(ring)) {}

  [[nodiscard]] bool has_room(std::int64_t r, std::int32_t step, std::int64_t rows) const {
    const std::int64_t filled = at(r, step);
    return filled == 0 || filled + rows <= cap_;
  }
  [[nodiscard]] std::int64_t at(std::int64_t r, std::int32_t step) const {
    const std::vector<std::int64_t>& steps = rows_[static_cast<std::size_t>(r)];
    return static_cast<std::size_t>(step) < steps.size() ? steps[static_cast<std::size_t>(step)] : 0;
  }
  void add(std::int64_t r, std::int32_t step, std::int64_t rows) {
    std::vector<std::int64_t>& steps = rows_[static_cast<std::size_t>(r)];
    steps.resize(std::max(steps.size(), static_cast<std::size_t>(step) + 1), 0);
    steps[static_cast<std::size_t>(step)] += rows;
  }

 private:
  std::int64_t cap_;
  std::vector<std::vector<std::int64_t>> rows_;
};

/// Puts every fetch of a layer into a step; step_of(r, d) is called by rising distance d.
template <typename StepOf>
void assign_steps(const Plan& plan, LayerPlan& layer, StepOf&& step_of) {
  const std::int32_t ring = plan.mesh.ring;
  FilledSteps in(ring, 0);
  layer.num_slices = 0;
  layer.slot_rows = 0;
  for (PairDemand& demand : layer.demand) demand.slice = 0;
  for (std::int32_t d = 1; d < ring; ++d)
    for (std::int32_t r = 0; r < ring; ++r) {
      const std::int64_t rows = fetch_rows(plan, layer, r, d);
      if (rows == 0) continue;
      const std::int32_t step = step_of(r, d);
      in.add(r, step, rows);
      layer.demand[static_cast<std::size_t>(r * ring + behind(plan, r, d))].slice = step;
      layer.num_slices = std::max(layer.num_slices, step);
      layer.slot_rows = std::max(layer.slot_rows, in.at(r, step));
    }
}

/// As many distances in a step as fit the cap on every rank: level steps where ranks need alike.
void cut_by_distance(const Plan& plan, LayerPlan& layer, std::int64_t cap) {
  const std::int32_t ring = plan.mesh.ring;
  std::vector<std::int32_t> step_of(static_cast<std::size_t>(ring), 1);
  FilledSteps in(ring, cap);
  for (std::int32_t d = 1, step = 1; d < ring; ++d) {
    bool fits = true;
    for (std::int32_t r = 0; r < ring && fits; ++r) fits = in.has_room(r, step, fetch_rows(plan, layer, r, d));
    if (!fits) ++step;
    for (std::int32_t r = 0; r < ring; ++r) in.add(r, step, fetch_rows(plan, layer, r, d));
    step_of[static_cast<std::size_t>(d)] = step;
  }
  assign_steps(plan, layer, [&](std::int32_t, std::int32_t d) { return step_of[static_cast<std::size_t>(d)]; });
}

/// Each fetch in the first step in which both sides have room: few steps where ranks need different amounts.
void cut_by_rank(const Plan& plan, LayerPlan& layer, std::int64_t cap) {
  const std::int32_t ring = plan.mesh.ring;
  FilledSteps in(ring, cap), out(ring, cap);
  std::vector<std::int32_t> open(static_cast<std::size_t>(ring), 1);  // a rank's first step below the cap
  assign_steps(plan, layer, [&](std::int32_t r, std::int32_t d) {
    const std::int64_t rows = fetch_rows(plan, layer, r, d), key = behind(plan, r, d);
    std::int32_t& first = open[static_cast<std::size_t>(r)];
    std::int32_t step = first;
    while (!in.has_room(r, step, rows) || !out.has_room(key, step, rows)) ++step;
    in.add(r, step, rows);
    out.add(key, step, rows);
    while (in.at(r, first) >= cap) ++first;
    return step;
  });
}

/// The sum of each step's most block pairs of a rank.
std::int64_t busiest_tiles(const Plan& plan, const LayerPlan& layer) {
  const auto ring = static_cast<std::size_t>(plan.mesh.ring);
  std::vector<std::int64_t> most(static_cast<std::size_t>(layer.num_slices) + 1, 0), of_rank;
  for (std::size_t r = 0; r < ring; ++r) {
    of_rank.assign(most.size(), 0);
    for (std::size_t key = 0; key < ring; ++key) {
      const PairDemand& demand = layer.demand[r * ring + key];
      of_rank[static_cast<std::size_t>(demand.slice)] += demand.full_tiles + demand.partial_tiles;
    }
    for (std::size_t s = 0; s < most.size(); ++s) most[s] = std::max(most[s], of_rank[s]);
  }
  return std::accumulate(most.begin(), most.end(), std::int64_t{0});
}

}  // namespace

std::int64_t received_rows(const Plan& plan, const LayerPlan& layer) {
  std::int64_t rows = 0;
  for (std::int64_t r = 0; r < plan.mesh.ring; ++r)
    for (std::int64_t j = 0; j < plan.mesh.ring; ++j)
      if (r != j) rows += fetched_rows(plan, layer, r, j);
  return rows;
}

void set_strategy(const Plan& plan, LayerPlan& layer, Strategy strategy, std::int64_t fetch_tokens) {
  layer.strategy = strategy;
  const std::int64_t shard = ring_rows(plan.layout.num_tokens(), plan.mesh.ring, plan.block);
  const std::int64_t cap = fetch_tokens > 0 ? fetch_tokens : shard;
  if (strategy == Strategy::ring) {
    assign_steps(plan, layer, [](std::int32_t, std::int32_t d) { return d; });
    return;
  }
  cut_by_distance(plan, layer, cap);
  if (strategy == Strategy::allgather) return;
  LayerPlan by_rank = layer;
  cut_by_rank(plan, by_rank, cap);
  if (busiest_tiles(plan, by_rank) < busiest_tiles(plan, layer)) layer = std::move(by_rank);
}

template <typename PeerAt, typename StepOf>
StepPeers::Lists StepPeers::make_lists(std::int64_t ring, PeerAt&& peer_at, StepOf&& step_of) const {
  Lists lists;
  lists.begin.assign(static_cast<std::size_t>(ring * num_steps_) + 1, 0);
  // Counting sort: a peer is in the list of its step; a pair between which nothing travels is in none.
  const auto for_each = [&](auto&& fn) {
    for (std::int64_t r = 0; r < ring; ++r)
      for (std::int64_t d = 0; d < ring; ++d) {
        const std::int64_t peer = peer_at(r, d), step = step_of(r, peer);
        if (d == 0 || step > 0) fn(static_cast<std::size_t>(r * num_steps_ + step), peer);
      }
  };
  for_each([&](std::size_t list, std::int64_t) { ++lists.begin[list + 1]; });
  for (std::size_t l = 1; l < lists.begin.size(); ++l) lists.begin[l] += lists.begin[l - 1];
  lists.ranks.resize(static_cast<std::size_t>(lists.begin.back()));
  std::vector<std::int64_t> next(lists.begin.begin(), lists.begin.end() - 1);
  for_each([&](std::size_t list, std::int64_t peer) {
    lists.ranks[static_cast<std::size_t>(next[list]++)] = static_cast<std::int32_t>(peer);
  });
  return lists;
}

StepPeers::StepPeers(const Plan& plan, const LayerPlan& layer) : num_steps_(layer.num_slices + 1) {
  const std::int64_t ring = plan.mesh.ring;
  const auto slice = [&](std::int64_t query, std::int64_t key) { return demand_of(plan, layer, query, key).slice; };
  sources_ = make_lists(
      ring, [&](std::int64_t r, std::int64_t d) { return behind(plan, r, d); }, slice);
  targets_ = make_lists(
      ring, [&](std::int64_t r, std::int64_t d) { return (r + d) % ring; },
      [&](std::int64_t r, std::int64_t peer) { return slice(peer, r); });
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/slices.hpp"

#include "plan/placement.hpp"

#include <algorithm>

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
  cut_slices(plan, layer, fetch_tokens > 0 ? fetch_tokens : shard);
}

}  // namespace marble

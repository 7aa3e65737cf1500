// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/local_split.hpp"

#include "plan/cost.hpp"
#include "plan/slices.hpp"
#include "plan/tile_cost.hpp"

#include <algorithm>

namespace marble {
namespace {

// Keys travel in 16 bits (in fp32 they take longer and want a longer first part, but nobody trains so), gradients
// in 32.
constexpr std::int64_t kKeyBytes = 2;
constexpr std::int64_t kGradientBytes = 4;

/// The longer of both ways of slice `slice` at a ring rank, in rows.
std::int64_t moved_rows(const Plan& plan, const LayerPlan& layer, std::int64_t ring_rank, std::int32_t slice) {
  std::int64_t in = 0, out = 0;
  for (std::int64_t peer = 0; peer < plan.mesh.ring; ++peer) {
    if (demand_of(plan, layer, ring_rank, peer).slice == slice) in += fetched_rows(plan, layer, ring_rank, peer);
    if (demand_of(plan, layer, peer, ring_rank).slice == slice) out += fetched_rows(plan, layer, peer, ring_rank);
  }
  return std::max(in, out);
}

/// How long the slice's gradients of any rank travel.
std::int64_t longest_return_ns(const Plan& plan, const LayerPlan& layer, std::int32_t slice) {
  std::int64_t rows = 0;
  for (std::int64_t r = 0; r < plan.mesh.ring; ++r) rows = std::max(rows, moved_rows(plan, layer, r, slice));
  const std::int64_t row = 2 * busiest_heads(plan.model, plan.mesh.ulysses).kv * plan.model.head_dim * kGradientBytes;
  const bool crosses_nodes = plan.mesh.num_ranks() > plan.mesh.ranks_per_node;
  const Hardware& hardware = plan.hardware;
  return travel_ns(rows * row, crosses_nodes ? hardware.network_mbytes_per_s : hardware.node_mbytes_per_s);
}

/// Mean time on one multiprocessor of a unit of any rank's own keys: a key block and a key head, with all its queries.
/// A work ends in a tail of about this length, in which multiprocessors run out of units one by one.
std::int64_t longest_unit_ns(const Plan& plan, const LayerPlan& layer) {
  const BusiestHeads heads = busiest_heads(plan.model, plan.mesh.ulysses);
  const TileTime tile = backward_tile(plan.hardware, plan.block, plan.model.head_dim);
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < plan.mesh.ring; ++r) {
    const PairDemand& own = layer.demand[static_cast<std::size_t>(r * plan.mesh.ring + r)];
    const __int128 femtoseconds = static_cast<__int128>(own.full_tiles) * tile.full_fs +
                                  static_cast<__int128>(own.partial_tiles) * tile.partial_fs;
    const std::int64_t units = std::max<std::int64_t>(own.needed_blocks * heads.kv, 1);
    longest = std::max(
        longest, static_cast<std::int64_t>(femtoseconds * heads.q * plan.hardware.multiprocessors / units / 1'000'000));
  }
  return longest;
}

}  // namespace

bool splits_own_keys(const Plan& plan, const LayerPlan& layer) {
  return layer.num_slices > 0 &&
         longest_return_ns(plan, layer, layer.num_slices) > plan.hardware.step_ns + longest_unit_ns(plan, layer);
}

LocalSplit local_split(const Plan& plan, const LayerPlan& layer, std::int64_t ring_rank) {
  const std::int64_t returned = moved_rows(plan, layer, ring_rank, layer.num_slices) * kGradientBytes;
  const std::int64_t fetched = plan.keep == Keep::fetched ? 0 : moved_rows(plan, layer, ring_rank, 1) * kKeyBytes;
  return {returned, std::max<std::int64_t>(returned + std::max(fetched, returned / 3), 1)};
}

std::pair<std::vector<Item>, std::vector<Item>> split_items(const std::vector<Item>& items, const LocalSplit& split) {
  std::vector<Item> first, last;
  __int128 seen = 0, dealt = 0;  // block pairs of all items so far, and of those in the last part
  for (const Item& item : items) {
    seen += item.tiles;
    const bool to_last = (dealt + item.tiles) * split.whole <= seen * split.last;
    if (to_last) dealt += item.tiles;
    (to_last ? last : first).push_back(item);
  }
  return {std::move(first), std::move(last)};
}

}  // namespace marble

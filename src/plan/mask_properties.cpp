// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Locality, density and head budget (paper section 04), and the shard that hides its hop.

#include "plan/balance.hpp"
#include "plan/cost.hpp"
#include "plan/tile_cost.hpp"

#include <algorithm>

namespace marble {
namespace {

/// Block pairs of the layer's demand, of all rank pairs or of different ranks alone.
struct Tiles {
  std::int64_t full = 0;
  std::int64_t partial = 0;
  std::int64_t all = 0;
};

Tiles count_tiles(const Plan& plan, const LayerPlan& layer, bool remote_only) {
  const auto ring = static_cast<std::size_t>(plan.mesh.ring);
  const auto blocks = [&](std::size_t r) { return (plan.ring_tokens[r] + plan.block - 1) / plan.block; };
  Tiles tiles;
  for (std::size_t r = 0; r < ring; ++r)
    for (std::size_t j = 0; j < ring; ++j) {
      if (remote_only && r == j) continue;
      tiles.full += layer.demand[r * ring + j].full_tiles;
      tiles.partial += layer.demand[r * ring + j].partial_tiles;
      tiles.all += blocks(r) * blocks(j);
    }
  return tiles;
}

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// S keys take S * row_bytes / bandwidth to come, and S queries times S keys take S^2 of the tiles' mean time.
std::int64_t hiding_shard(const Tiles& tiles, const TileTime& tile, std::int64_t q_heads, std::int64_t block,
                          std::int64_t row_bytes, std::int64_t mbytes_per_s) {
  const __int128 tiles_fs =
      (static_cast<__int128>(tiles.full) * tile.full_fs + static_cast<__int128>(tiles.partial) * tile.partial_fs) *
      q_heads;
  if (tiles_fs == 0) return 0;
  const __int128 row_fs = static_cast<__int128>(row_bytes) * 1'000'000'000 / mbytes_per_s;
  const auto tokens = static_cast<std::int64_t>(row_fs * block * block * tiles.all / tiles_fs);
  return (tokens + block) / block * block;
}

}  // namespace

MaskProperties mask_properties(const Plan& plan, std::int32_t layer) {
  const LayerPlan& of_layer = layer_of(plan, layer);
  const auto ring = static_cast<std::size_t>(plan.mesh.ring);
  std::int64_t needed = 0;
  for (std::size_t r = 0; r < ring; ++r)
    for (std::size_t j = 0; j < ring; ++j)
      if (r != j) needed += of_layer.demand[r * ring + j].needed_rows;
  const Tiles tiles = count_tiles(plan, of_layer, false);
  const std::int64_t visible = tiles.full + tiles.partial;
  return {.locality = share(needed, plan.layout.num_tokens() * (plan.mesh.ring - 1)),
          .visible_share = share(visible, tiles.all),
          .full_share = share(tiles.full, visible),
          .partial_share = share(tiles.partial, visible)};
}

HeadBudget head_budget(const Model& model) {
  HeadBudget budget{.without_replication = 1, .largest = model.heads};
  for (std::int32_t u = 1; u <= model.heads; ++u) {
    if (replicates_key_heads(model, u)) continue;
    budget.without_replication = u;
    if (model.heads % u == 0 && model.kv_heads % u == 0) budget.even.push_back(u);
  }
  return budget;
}

SmallestShard smallest_shard(const Plan& plan, std::int32_t layer, DType dtype) {
  const Tiles tiles = count_tiles(plan, layer_of(plan, layer), true);
  const BusiestHeads heads = busiest_heads(plan.model, plan.mesh.ulysses);
  const std::int64_t elements = 2 * heads.kv * plan.model.head_dim;  // of a row of k and v
  const auto shard = [&](const TileTime& tile, std::int64_t element, std::int64_t mbytes_per_s) {
    return hiding_shard(tiles, tile, heads.q, plan.block, elements * element, mbytes_per_s);
  };
  const Hardware& hardware = plan.hardware;
  const TileTime forward = forward_tile(hardware, plan.block, plan.model.head_dim);
  const TileTime backward = backward_tile(hardware, plan.block, plan.model.head_dim);
  const std::int64_t io = size_of(dtype), both = io + size_of(DType::fp32);  // backward returns dk and dv
  return {.forward_node = shard(forward, io, hardware.node_mbytes_per_s),
          .forward_network = shard(forward, io, hardware.network_mbytes_per_s),
          .backward_node = shard(backward, both, hardware.node_mbytes_per_s),
          .backward_network = shard(backward, both, hardware.network_mbytes_per_s)};
}

}  // namespace marble

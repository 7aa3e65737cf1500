// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/placed_layer.hpp"

#include "base/parallel.hpp"
#include "plan/query_ranks.hpp"
#include "plan/tile_map.hpp"

#include <algorithm>
#include <optional>

namespace marble {
namespace {

/// Adds the block pairs of one rank's queries with a key block.
void add_demand(PairDemand& demand, const RankRows& rows, const KeyBlocks& keys, const KeyBlock& key_block,
                std::int64_t block, std::vector<Run>& runs) {
  runs.clear();
  append_query_runs(keys, key_block, rows, block, runs);
  if (runs.empty()) return;
  demand.needed_rows += key_block.rows;
  ++demand.needed_blocks;
  for (const Run& run : runs)
    (run.block_class == BlockClass::full ? demand.full_tiles : demand.partial_tiles) += run.end - run.begin;
}

/// The sum of rows.before(edge) over the keys of an edge.
std::int64_t sum_rows(const RankRows& rows, const EdgeSplit& edge) {
  std::int64_t sum = 0;
  if (edge.at_low > 0) sum += edge.at_low * rows.before(edge.low);
  if (edge.moving > 0) sum += rows.before_sum(edge.first + edge.moving) - rows.before_sum(edge.first);
  if (edge.at_high > 0) sum += edge.at_high * rows.before(edge.high);
  return sum;
}

}  // namespace

PlacedRanks place_ranks(std::span<const Piece> pieces, std::int32_t ring, const CanonicalOrder& order,
                        const Visibility& visibility, std::int64_t block, int threads) {
  std::vector<std::vector<Piece>> of_rank(static_cast<std::size_t>(ring));
  for (const Piece& piece : pieces) of_rank[static_cast<std::size_t>(piece.ring_rank)].push_back(piece);
  PlacedRanks ranks{.pieces = {pieces.begin(), pieces.end()}};
  ranks.key_blocks.resize(of_rank.size());
  std::vector<std::optional<RankRows>> rows(of_rank.size());
  parallel_for(ring, threads, [&](std::int64_t r) {
    const auto rank = static_cast<std::size_t>(r);
    ranks.key_blocks[rank] = summarise_key_blocks(of_rank[rank], order, visibility, block);
    rows[rank].emplace(std::move(of_rank[rank]), order.num_tokens);
  });
  ranks.rows.reserve(rows.size());
  for (std::optional<RankRows>& rank_rows : rows) ranks.rows.push_back(std::move(*rank_rows));
  return ranks;
}

PlacedLayer place_layer(const Plan& plan, const MaskRule& rule, int threads) {
  PlacedLayer layer;
  layer.order = canonical_order(plan.layout, plan.canonical);
  layer.visibility = make_visibility(layer.order, plan.canonical, rule);
  static_cast<PlacedRanks&>(layer) =
      place_ranks(plan.pieces, plan.mesh.ring, layer.order, layer.visibility, plan.block, threads);
  return layer;
}

std::vector<PairDemand> measure_demand(const PlacedRanks& ranks, std::int64_t block, int threads) {
  const std::size_t ring = ranks.rows.size();
  std::vector<PairDemand> demand(ring * ring);
  parallel_for(static_cast<std::int64_t>(ring), threads, [&](std::int64_t k) {
    std::vector<Run> runs;
    QueryRanks query_ranks(ranks.pieces, static_cast<std::int32_t>(ring));
    const auto key_rank = static_cast<std::size_t>(k);
    const KeyBlocks& keys = ranks.key_blocks[key_rank];
    for (const KeyBlock& key_block : keys.blocks)
      for (const std::int32_t r : query_ranks.of(keys.in(key_block.visible))) {
        const auto rank = static_cast<std::size_t>(r);
        add_demand(demand[rank * ring + key_rank], ranks.rows[rank], keys, key_block, block, runs);
      }
  });
  return demand;
}

std::vector<std::int64_t> measure_pairs(const PlacedLayer& placed, int threads) {
  const std::size_t ring = placed.rows.size();
  std::vector<std::int64_t> pairs(ring * ring);
  parallel_for(static_cast<std::int64_t>(ring), threads, [&](std::int64_t k) {
    QueryRanks query_ranks(placed.pieces, static_cast<std::int32_t>(ring));
    const auto key_rank = static_cast<std::size_t>(k);
    for (const Fragment& fragment : placed.key_blocks[key_rank].fragments)
      for (VisibleEntry entry : placed.visibility.of_span(fragment.span)) {
        entry.key_begin = std::max(entry.key_begin, fragment.canonical);
        entry.key_end = std::min(entry.key_end, fragment.canonical + fragment.length);
        if (entry.key_begin >= entry.key_end) continue;
        const EdgeSplit high = split_hi(entry), low = split_lo(entry);
        const Interval visible{entry.rule.lo(entry.key_begin), entry.rule.hi(entry.key_end - 1)};
        for (const std::int32_t r : query_ranks.of({&visible, 1})) {
          const auto rank = static_cast<std::size_t>(r);
          pairs[rank * ring + key_rank] += sum_rows(placed.rows[rank], high) - sum_rows(placed.rows[rank], low);
        }
      }
  });
  return pairs;
}

}  // namespace marble

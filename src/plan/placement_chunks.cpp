// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The chunks placement: for each chunk count, the better of two assignments, improved by swaps; then the cheapest
// count.

#include "base/parallel.hpp"
#include "mask/boundary_sums.hpp"
#include "plan/chunk_search.hpp"
#include "plan/deal_by_work.hpp"
#include "plan/placement.hpp"

#include <algorithm>
#include <memory>
#include <span>

namespace marble {
namespace {

/// Chunks of `wide` blocks, as many a rank as its rows hold, then one narrow chunk a rank for the blocks left over, so
/// that any exchange of chunks of equal width keeps every rank within its rows.
struct ChunkGrid {
  std::vector<std::int64_t> ends;    // canonical
  std::vector<std::int32_t> groups;  // 0: wide, 1: narrow
  std::int64_t per_rank = 0;
};

ChunkGrid make_grid(const PlacementInput& input, std::int64_t chunks_per_rank) {
  const std::int64_t tokens = input.order.num_tokens;
  const std::int64_t rank_blocks = ring_rows(tokens, input.ring, input.block) / input.block;
  const std::int64_t wide = rank_blocks / chunks_per_rank, narrow = rank_blocks % chunks_per_rank;
  ChunkGrid grid;
  std::int64_t end = 0;
  const auto add = [&](std::int64_t count, std::int64_t blocks, std::int32_t group) {
    for (std::int64_t c = 0; c < count && blocks > 0; ++c) {
      end = std::min(end + blocks * input.block, tokens);
      grid.ends.push_back(end);
      grid.groups.push_back(group);
    }
  };
  add(chunks_per_rank * input.ring, wide, 0);
  add(input.ring, narrow, 1);
  grid.per_rank = chunks_per_rank + (narrow > 0 ? 1 : 0);
  return grid;
}

/// Adds the pairs of all queries with the keys [begin, end) to `sums`.
void add_keys(const CanonicalOrder& order, const Visibility& visibility, std::int64_t begin, std::int64_t end,
              BoundarySums& sums) {
  auto span = std::upper_bound(order.spans.begin(), order.spans.end(), begin,
                               [](std::int64_t at, const CanonicalSpan& s) { return at < s.canonical_end(); });
  for (; span != order.spans.end() && span->canonical < end; ++span)
    for (VisibleEntry entry : visibility.of_span(span - order.spans.begin())) {
      entry.key_begin = std::max(entry.key_begin, begin);
      entry.key_end = std::min(entry.key_end, end);
      if (entry.key_begin < entry.key_end) sums.add(entry);
    }
}

ChunkPairs count_chunk_pairs(const PlacementInput& input, const ChunkGrid& grid) {
  const auto chunks = static_cast<std::int64_t>(grid.ends.size());
  ChunkPairs result{chunks, std::vector<std::int64_t>(static_cast<std::size_t>(chunks * chunks), 0)};
  BoundarySums sums(grid.ends, input.block);
  std::vector<std::int64_t> column(grid.ends.size());
  for (std::int64_t b = 0; b < chunks; ++b) {
    const std::int64_t begin = b == 0 ? 0 : grid.ends[static_cast<std::size_t>(b) - 1];
    for (const LayerVisibility& layer : input.layers) {
      sums.clear();
      add_keys(input.order, layer.visibility, begin, grid.ends[static_cast<std::size_t>(b)], sums);
      sums.evaluate(column);
      for (std::int64_t a = 0; a < chunks; ++a)
        result.pairs[static_cast<std::size_t>(a * chunks + b)] += column[static_cast<std::size_t>(a)] * layer.count;
    }
  }
  return result;
}

/// Chunks in sequence order, in rounds of R, every other round reversed: an early and a late chunk for each rank.
std::vector<std::int32_t> deal_in_order(const ChunkGrid& grid, std::int32_t ring) {
  std::vector<std::int32_t> owners;
  std::int32_t dealt[2] = {0, 0};
  for (const std::int32_t group : grid.groups) {
    const std::int32_t turn = dealt[group]++, place = turn % ring;
    owners.push_back(turn / ring % 2 == 0 ? place : ring - 1 - place);
  }
  return owners;
}

/// Chunks in the order of their work, by PTRR's rule, within each width.
std::vector<std::int32_t> deal_in_order_of_work(const ChunkGrid& grid, const ChunkPairs& pairs, std::int32_t ring) {
  std::vector<std::int64_t> queries(grid.ends.size(), 0), keys(grid.ends.size(), 0);
  for (std::int64_t a = 0; a < pairs.num_chunks; ++a)
    for (std::int64_t b = 0; b < pairs.num_chunks; ++b) {
      queries[static_cast<std::size_t>(a)] += pairs.at(a, b);
      keys[static_cast<std::size_t>(b)] += pairs.at(a, b);
    }
  const auto num_wide = static_cast<std::size_t>(std::count(grid.groups.begin(), grid.groups.end(), 0));
  const std::span<const std::int64_t> all_queries(queries), all_keys(keys);
  std::vector<std::int32_t> owners = deal_by_work(all_queries.first(num_wide), all_keys.first(num_wide), ring);
  const std::vector<std::int32_t> narrow =
      deal_by_work(all_queries.subspan(num_wide), all_keys.subspan(num_wide), ring);
  owners.insert(owners.end(), narrow.begin(), narrow.end());
  return owners;
}

/// One chunk count: the better of the two deals, and swaps from there on.
class Assignment {
 public:
  Assignment(const PlacementInput& input, std::int64_t chunks_per_rank)
      : grid_(make_grid(input, chunks_per_rank)),
        pairs_(count_chunk_pairs(input, grid_)),
        search_(pairs_, deal_in_order(grid_, input.ring), input.ring),
        overhead_(input.range_cost * input.ring * grid_.per_rank) {
    ChunkSearch by_work(pairs_, deal_in_order_of_work(grid_, pairs_, input.ring), input.ring);
    if (by_work.cost() < search_.cost()) search_ = std::move(by_work);
  }
  Assignment(const Assignment&) = delete;
  Assignment& operator=(const Assignment&) = delete;

  void improve(std::int64_t budget) { search_.improve(grid_.groups, budget); }
  [[nodiscard]] std::int64_t cost() const { return search_.cost() + overhead_; }

  [[nodiscard]] std::vector<OwnedRange> ranges() const {
    std::vector<OwnedRange> ranges;
    std::int64_t begin = 0;
    for (std::size_t c = 0; c < grid_.ends.size(); ++c) {
      ranges.push_back({begin, grid_.ends[c] - begin, search_.owners()[c]});
      begin = grid_.ends[c];
    }
    return ranges;
  }

 private:
  ChunkGrid grid_;
  ChunkPairs pairs_;
  ChunkSearch search_;
  std::int64_t overhead_;
};

}  // namespace

std::vector<OwnedRange> place_chunks(const PlacementInput& input) {
  constexpr std::int64_t kMaxChunks = 2048;  // of all ranks: bounds the pair matrix to 32 MiB
  const std::int64_t rank_blocks = ring_rows(input.order.num_tokens, input.ring, input.block) / input.block;
  constexpr std::int64_t kFirstBudget = 6'000'000, kSecondBudget = 24'000'000;  // matrix cells looked at
  std::vector<std::int64_t> counts = {1};
  while (counts.back() < 64 && 2 * counts.back() <= rank_blocks && 2 * counts.back() * input.ring <= kMaxChunks)
    counts.push_back(2 * counts.back());
  std::vector<std::unique_ptr<Assignment>> assignments(counts.size());
  const auto improve_all = [&](std::int64_t budget) {
    parallel_for(static_cast<std::int64_t>(assignments.size()), input.threads,
                 [&](std::int64_t i) { assignments[static_cast<std::size_t>(i)]->improve(budget); });
    std::stable_sort(assignments.begin(), assignments.end(),
                     [](const auto& a, const auto& b) { return a->cost() < b->cost(); });
  };
  const auto last = static_cast<std::int64_t>(counts.size()) - 1;
  parallel_for(last + 1, input.threads, [&](std::int64_t i) {  // the largest first: it takes longest
    const auto count = static_cast<std::size_t>(last - i);
    assignments[count] = std::make_unique<Assignment>(input, counts[count]);
  });
  // A little search for all, and most of it for the two counts that lead.
  improve_all(kFirstBudget);
  assignments.resize(std::min<std::size_t>(assignments.size(), 2));
  improve_all(kSecondBudget);
  return assignments.front()->ranges();
}

}  // namespace marble

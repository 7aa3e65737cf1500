// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The chunks placement: for each chunk count, the better of two assignments, improved by swaps; then the cheapest
// count.

#include "base/parallel.hpp"
#include "mask/boundary_sums.hpp"
#include "plan/chunk_search.hpp"
#include "plan/placement.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

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

/// PTRR's rule over `order`, within each width: rounds of R, every other round reversed.
std::vector<std::int32_t> deal(const ChunkGrid& grid, std::span<const std::int32_t> order, std::int32_t ring) {
  std::vector<std::int32_t> owners(grid.ends.size());
  std::int32_t dealt[2] = {0, 0};
  for (const std::int32_t chunk : order) {
    const std::int32_t turn = dealt[grid.groups[static_cast<std::size_t>(chunk)]]++;
    const std::int32_t place = turn % ring;
    owners[static_cast<std::size_t>(chunk)] = turn / ring % 2 == 0 ? place : ring - 1 - place;
  }
  return owners;
}

struct Assignment {
  std::int64_t cost = std::numeric_limits<std::int64_t>::max();
  ChunkGrid grid;
  std::vector<std::int32_t> owners;
};

constexpr std::int64_t kSearchBudget = 4'000'000;  // matrix cells looked at, for each chunk count

Assignment assign(const PlacementInput& input, std::int64_t chunks_per_rank) {
  Assignment result{.grid = make_grid(input, chunks_per_rank)};
  const ChunkPairs pairs = count_chunk_pairs(input, result.grid);
  std::vector<std::int32_t> in_order(result.grid.ends.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  std::vector<std::int64_t> work(in_order.size(), 0);
  for (std::int64_t a = 0; a < pairs.num_chunks; ++a)
    for (std::int64_t b = 0; b < pairs.num_chunks; ++b) work[static_cast<std::size_t>(a)] += pairs.at(a, b);
  std::vector<std::int32_t> by_work = in_order;
  std::stable_sort(by_work.begin(), by_work.end(), [&](std::int32_t a, std::int32_t b) {
    return work[static_cast<std::size_t>(a)] > work[static_cast<std::size_t>(b)];
  });
  ChunkSearch best(pairs, deal(result.grid, in_order, input.ring), input.ring);
  ChunkSearch other(pairs, deal(result.grid, by_work, input.ring), input.ring);
  ChunkSearch& search = other.cost() < best.cost() ? other : best;
  search.improve(result.grid.groups, kSearchBudget);
  result.cost = search.cost() + input.range_cost * input.ring * result.grid.per_rank;
  result.owners = search.owners();
  return result;
}

}  // namespace

std::vector<OwnedRange> place_chunks(const PlacementInput& input) {
  constexpr std::int64_t kMaxChunks = 2048;  // of all ranks: bounds the pair matrix to 32 MiB
  const std::int64_t rank_blocks = ring_rows(input.order.num_tokens, input.ring, input.block) / input.block;
  std::vector<std::int64_t> counts = {1};
  while (counts.back() < 64 && 2 * counts.back() <= rank_blocks && 2 * counts.back() * input.ring <= kMaxChunks)
    counts.push_back(2 * counts.back());
  std::vector<Assignment> assignments(counts.size());
  const auto last = static_cast<std::int64_t>(counts.size()) - 1;
  parallel_for(last + 1, input.threads, [&](std::int64_t i) {  // the largest first: it takes longest
    assignments[static_cast<std::size_t>(last - i)] = assign(input, counts[static_cast<std::size_t>(last - i)]);
  });
  const Assignment& best = *std::min_element(assignments.begin(), assignments.end(),
                                             [](const Assignment& a, const Assignment& b) { return a.cost < b.cost; });
  std::vector<OwnedRange> ranges;
  std::int64_t begin = 0;
  for (std::size_t c = 0; c < best.owners.size(); ++c) {
    ranges.push_back({begin, best.grid.ends[c] - begin, best.owners[c]});
    begin = best.grid.ends[c];
  }
  return ranges;
}

}  // namespace marble

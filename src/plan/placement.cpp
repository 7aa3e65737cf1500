// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.hpp"

#include "plan/deal_by_work.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <numeric>

namespace marble {
namespace {

/// The ring rank of every unit (block or stripe) of the canonical order.
using Owners = std::vector<std::int32_t>;

std::int64_t count_units(const PlacementInput& input, std::int64_t unit) {
  return (input.order.num_tokens + unit - 1) / unit;
}

/// Blocks of ring rank r when they are shared out as equally as whole blocks allow.
std::int64_t fair_share(std::int64_t blocks, std::int32_t ring, std::int64_t r) {
  return blocks * (r + 1) / ring - blocks * r / ring;
}

void append(Owners& owners, std::int64_t count, std::int32_t rank) {
  owners.insert(owners.end(), static_cast<std::size_t>(count), rank);
}

Owners contiguous(const PlacementInput& input) {
  const std::int64_t blocks = count_units(input, input.block);
  Owners owners;
  for (std::int32_t r = 0; r < input.ring; ++r) append(owners, fair_share(blocks, input.ring, r), r);
  return owners;
}

/// An early and a late run for each rank; the two sum to the rank's fair share.
Owners zigzag(const PlacementInput& input) {
  const std::int64_t blocks = count_units(input, input.block);
  Owners owners;
  for (std::int32_t r = 0; r < input.ring; ++r) append(owners, fair_share(blocks, input.ring, r) / 2, r);
  for (std::int32_t r = input.ring - 1; r >= 0; --r) {
    const std::int64_t share = fair_share(blocks, input.ring, r);
    append(owners, share - share / 2, r);
  }
  return owners;
}

Owners striped(const PlacementInput& input) {
  Owners owners(static_cast<std::size_t>(count_units(input, input.stripe)));
  for (std::size_t i = 0; i < owners.size(); ++i)
    owners[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(input.ring));
  return owners;
}

/// Paper section 03: blocks by falling work, dealt in rounds of R; storage order stays canonical.
Owners ptrr(const PlacementInput& input) {
  return deal_by_work(block_work(input), key_block_work(input), input.ring);
}

std::vector<OwnedRange> to_ranges(const Owners& owners, std::int64_t unit, std::int64_t num_tokens) {
  std::vector<OwnedRange> ranges;
  ranges.reserve(owners.size());
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * unit;
    ranges.push_back({begin, std::min(unit, num_tokens - begin), owners[i]});
  }
  return ranges;
}

std::vector<OwnedRange> make_ranges(Placement placement, const PlacementInput& input) {
  const std::int64_t tokens = input.order.num_tokens;
  switch (placement) {
    case Placement::contiguous:
      return to_ranges(contiguous(input), input.block, tokens);
    case Placement::zigzag:
      return to_ranges(zigzag(input), input.block, tokens);
    case Placement::striped:
      return to_ranges(striped(input), input.stripe, tokens);
    case Placement::ptrr:
      return to_ranges(ptrr(input), input.block, tokens);
    case Placement::chunks:
      return place_chunks(input);
    case Placement::dealt:
      return place_dealt(input);
  }
  throw InternalError("placement out of range");
}

}  // namespace

std::vector<std::int64_t> block_work(const PlacementInput& input) {
  std::vector<std::int64_t> sum(static_cast<std::size_t>(count_units(input, input.block)), 0);
  for (const LayerVisibility& layer : input.layers) {
    const std::vector<std::int64_t> pairs = pairs_per_block(layer.visibility, input.order.num_tokens, input.block);
    for (std::size_t b = 0; b < sum.size(); ++b) sum[b] += pairs[b] * layer.count;
  }
  return sum;
}

std::vector<std::int64_t> key_block_work(const PlacementInput& input) {
  std::vector<std::int64_t> sum(static_cast<std::size_t>(count_units(input, input.block)), 0);
  for (const LayerVisibility& layer : input.layers)
    for (VisibleEntry entry : layer.visibility.entries)
      for (const std::int64_t end = entry.key_end; entry.key_begin < end; entry.key_begin = entry.key_end) {
        const std::int64_t b = entry.key_begin / input.block;
        entry.key_end = std::min(end, (b + 1) * input.block);
        sum[static_cast<std::size_t>(b)] += count_pairs(entry) * layer.count;
      }
  return sum;
}

std::vector<Piece> to_pieces(std::span<const OwnedRange> ranges, std::int32_t ring) {
  std::vector<Piece> pieces;
  std::vector<std::int64_t> next_row(static_cast<std::size_t>(ring), 0);
  for (const OwnedRange& range : ranges) {
    if (range.length == 0) continue;
    std::int64_t& row = next_row[static_cast<std::size_t>(range.ring_rank)];
    if (!pieces.empty() && pieces.back().ring_rank == range.ring_rank)
      pieces.back().length += range.length;
    else
      pieces.push_back({range.canonical, range.length, row, range.ring_rank});
    row += range.length;
  }
  return pieces;
}

std::vector<Piece> place(Placement placement, const PlacementInput& input) {
  return to_pieces(make_ranges(placement, input), input.ring);
}

std::int64_t ring_rows(std::int64_t num_tokens, std::int32_t ring, std::int64_t block) {
  const std::int64_t blocks = (num_tokens + block - 1) / block;
  return (blocks + ring - 1) / ring * block;
}

}  // namespace marble

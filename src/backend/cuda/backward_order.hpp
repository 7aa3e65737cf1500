// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The order of a work's backward items, and the way that each goes through its query blocks. Both serve one aim: units
// that are at work at one time meet the same query blocks at nearly the same time, one shortly after the other. Then
// one fetch from memory serves them all, and a planned order of sums lets nobody wait for long.

#include "backend/cuda/params.hpp"

#include "marble/rank_plan.hpp"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace marble::cuda {

/// The path of a plan's units, from the segments of its query rows. It is the same however keys are cut into works, and
/// so are the bits of their gradients.
///
/// Neighbours among keys mostly share the last query block that sees them (causal and full spans in documents), or the
/// first one (bidirectional spans in a window). Paths begin at the shared end. Neighbours that share an end meet every
/// block with all its query heads before the next, for they would drift apart by the difference of their lengths with
/// every head. Those that share none, in a window over text, are of equal lengths: with a head at a time they meet a
/// block sooner after each other.
inline QueryPath query_path(std::int64_t window, std::span<const Segment> segments) {
  std::int64_t rows = 0, rows_cut = 0, rows_in_spans = 0;
  for (const Segment& segment : segments) {
    rows += segment.length;
    rows_cut += std::clamp<std::int64_t>(segment.position + segment.length - window, 0, segment.length);
    rows_in_spans += segment.segment >= 0 ? segment.length : 0;
  }
  if (window == 0 || 2 * rows_cut < rows) return {};
  if (2 * rows_in_spans > rows) return {.ascends = true};
  return {.heads_inside = false};
}

/// A work's items as a sweep from the beginnings of their paths reaches them: so what meets few blocks, such as a noise
/// span, adds before what comes by later.
inline std::vector<Item> in_order_of_paths(std::span<const Item> items, std::span<const Run> runs, QueryPath path) {
  const auto first = [&](const Item& item) { return runs[static_cast<std::size_t>(item.run_begin)].begin; };
  const auto end = [&](const Item& item) {
    return runs[static_cast<std::size_t>(item.run_begin + item.run_count - 1)].end;
  };
  std::vector<Item> ordered(items.begin(), items.end());
  if (path.ascends)
    std::ranges::sort(ordered, std::greater{}, [&](const Item& item) { return std::pair(first(item), item.block); });
  else
    std::ranges::sort(ordered, {}, [&](const Item& item) { return std::pair(end(item), item.block); });
  return ordered;
}

}  // namespace marble::cuda

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

struct BackwardOrder {
  QueryPath path;
  std::vector<Item> items;
};

/// Of a plan's backward items of one work and the runs that they index.
///
/// Neighbours among keys mostly share the last query block that sees them (causal and full spans in documents) or the
/// first one (bidirectional spans in a window). Paths begin at the shared end, and items come in the order in which a
/// sweep from there reaches their first blocks: so what meets few blocks, such as a noise span, adds before what comes
/// by later. Neighbours that share an end meet every block with all its query heads before the next, for they would
/// drift apart by the difference of their lengths with every head. Those that share none, in a window over text, are of
/// equal lengths: with a head at a time they meet a block sooner after each other.
inline BackwardOrder backward_order(std::span<const Item> items, std::span<const Run> runs) {
  const auto first = [&](const Item& item) { return runs[static_cast<std::size_t>(item.run_begin)].begin; };
  const auto end = [&](const Item& item) {
    return runs[static_cast<std::size_t>(item.run_begin + item.run_count - 1)].end;
  };
  BackwardOrder order{{}, {items.begin(), items.end()}};
  std::ranges::sort(order.items, {}, &Item::block);
  std::size_t share_first = 0, share_end = 0;
  for (std::size_t i = 1; i < order.items.size(); ++i) {
    share_first += first(order.items[i - 1]) == first(order.items[i]);
    share_end += end(order.items[i - 1]) == end(order.items[i]);
  }
  order.path.ascends = share_first > share_end;
  order.path.heads_inside = 2 * std::max(share_first, share_end) > order.items.size();
  if (order.path.ascends)
    std::ranges::sort(order.items, std::greater{},
                      [&](const Item& item) { return std::pair(first(item), item.block); });
  else
    std::ranges::stable_sort(order.items, {}, end);
  return order;
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_list.hpp"

namespace marble {

FetchList make_fetch_list(const RankRows& rows, const KeyBlocks& keys, std::int64_t block, bool all) {
  FetchList list;
  for (std::size_t b = 0; b < keys.blocks.size(); ++b) {
    append_query_runs(keys, keys.blocks[b], rows, block, list.runs.runs);
    const auto end = static_cast<std::int64_t>(list.runs.runs.size());
    if (!all && end == list.runs.begin.back()) continue;
    list.runs.begin.push_back(end);
    list.blocks.push_back(static_cast<std::int32_t>(b));
    const std::int64_t row = static_cast<std::int64_t>(b) * block;
    if (!list.ranges.empty() && list.ranges.back().row + list.ranges.back().rows == row)
      list.ranges.back().rows += keys.blocks[b].rows;
    else
      list.ranges.push_back({row, keys.blocks[b].rows});
  }
  return list;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which key blocks one ring rank fetches from another. Both sides compute the same list.

#include "plan/placed_layer.hpp"
#include "plan/tile_map.hpp"

#include <cstdint>
#include <vector>

namespace marble {

/// Rows [row, row + rows) of the owner's storage, from a block border on.
struct RowRange {
  std::int64_t row = 0;
  std::int64_t rows = 0;
};

struct FetchList {
  std::vector<std::int32_t> blocks;  // ascending, of the owner's storage
  std::vector<RowRange> ranges;      // the same rows, adjacent blocks joined
  KeyMajorRuns runs;                 // of the fetching rank's query blocks, for each of `blocks`
};

/// `all`: whole shards travel, whether or not a query sees them.
[[nodiscard]] FetchList make_fetch_list(const RankRows& rows, const KeyBlocks& keys, std::int64_t block, bool all);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block pairs of one rank's queries with a list of key blocks, as runs, key-major and query-major.

#include "plan/key_blocks.hpp"
#include "plan/rank_rows.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// Appends the runs of query blocks of `rows` that see the key block, ascending; full where every row of the query
/// block sees every key. O(intervals of the block).
void append_query_runs(const KeyBlocks& keys, const KeyBlock& block, const RankRows& rows, std::int64_t block_rows,
                       std::vector<Run>& runs);

/// Key-major runs of a list of key blocks: key block b has runs[begin[b] .. begin[b + 1]).
struct KeyMajorRuns {
  std::vector<Run> runs;
  std::vector<std::int64_t> begin = {0};

  [[nodiscard]] std::int64_t num_key_blocks() const { return static_cast<std::int64_t>(begin.size()) - 1; }
  [[nodiscard]] std::span<const Run> of(std::int64_t key_block) const;
};

/// Query-major items of the same block pairs. Item runs point into `runs`, from its present end on; query blocks whose
/// runs are equal to their predecessor's share them. Only query blocks with a tile get an item. Linear in what changes
/// from one query block to the next, and in the runs written.
[[nodiscard]] std::vector<Item> transpose(const KeyMajorRuns& key_major, std::int64_t num_query_blocks,
                                          std::vector<Run>& runs);

/// Key-major items: one for each key block with a tile; runs are appended to `runs`.
[[nodiscard]] std::vector<Item> key_major_items(const KeyMajorRuns& key_major, std::vector<Run>& runs);

/// Largest first, then by block: the order in which a backend takes them.
void sort_by_tiles(std::vector<Item>& items);

}  // namespace marble

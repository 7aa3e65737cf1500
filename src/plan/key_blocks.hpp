// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Block summaries (paper section 03, "Block classification"), one per key block of the placed sequence: which canonical
// queries see some key of the block, and which see all of them. A block pair is empty when no query of the query block
// is in the first set, full when all are in the second, else partial. O(spans + pieces + blocks) for the whole
// sequence.

#include "mask/visibility.hpp"

#include "marble/plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Rows [row, row + length) of a ring rank's storage: consecutive keys of one span, inside one block.
struct Fragment {
  std::int64_t row = 0;
  std::int64_t length = 0;
  std::int64_t canonical = 0;
  std::int64_t span = 0;  // index into CanonicalOrder::spans
};

struct KeyBlock {
  SectionRange fragments;
  SectionRange visible;  // into `intervals`: queries that see some key; disjoint, ascending
  SectionRange full;     // into `intervals`: queries that see every key; none for a block cut by the shard's end
  std::int32_t rows = 0;
};

/// The key blocks of one ring rank's storage.
struct KeyBlocks {
  std::vector<KeyBlock> blocks;
  std::vector<Fragment> fragments;
  std::vector<Interval> intervals;

  [[nodiscard]] std::span<const Interval> in(const SectionRange& range) const {
    return std::span(intervals).subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
  }
  [[nodiscard]] std::span<const Fragment> of(const KeyBlock& block) const {
    return std::span(fragments).subspan(static_cast<std::size_t>(block.fragments.begin),
                                        static_cast<std::size_t>(block.fragments.size()));
  }
};

/// `pieces`: those of one ring rank, ascending.
[[nodiscard]] KeyBlocks summarise_key_blocks(std::span<const Piece> pieces, const CanonicalOrder& order,
                                             const Visibility& visibility, std::int64_t block);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which canonical query indices may see each key, from spans alone (system design, section 4.2).

#include "mask/canonical.hpp"

#include "marble/rank_plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// Keys [key_begin, key_end) of one span are seen by the queries of `rule`, which holds at least one query for each
/// key.
struct VisibleEntry {
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
  VisibleRule rule;
};

/// Entries of one span cover its keys with disjoint query ranges; together they are exactly the legal pairs.
struct Visibility {
  std::vector<VisibleEntry> entries;
  std::vector<std::int64_t> entry_begin;  // per span of the order, and the number of entries
  bool single_range = true;               // every span has one entry: partial blocks can use the visible-range test

  [[nodiscard]] std::span<const VisibleEntry> of_span(std::int64_t span) const;
};

/// O(spans) where closed forms hold (no sample mixes noise with group sets, windows with stacked sets, or, in sequence
/// order, has a set of several spans); otherwise O(spans of the sample squared) for that sample.
[[nodiscard]] Visibility make_visibility(const CanonicalOrder& order, Canonical canonical, const MaskRule& rule);

/// The same from every pair of spans, without closed forms: slow and obvious.
[[nodiscard]] Visibility make_visibility_pairwise(const CanonicalOrder& order, const MaskRule& rule);

/// How the keys of an entry fall on one end of their ranges, an edge clamp(k + offset, low, high): `at_low` keys on
/// `low`, then `moving` keys on consecutive values from `first`, then `at_high` keys on `high`.
struct EdgeSplit {
  std::int64_t low = 0, high = 0;
  std::int64_t at_low = 0, moving = 0, at_high = 0;
  std::int64_t first = 0;
};
[[nodiscard]] EdgeSplit split_lo(const VisibleEntry& entry);
[[nodiscard]] EdgeSplit split_hi(const VisibleEntry& entry);

[[nodiscard]] std::int64_t count_pairs(const VisibleEntry& entry);

/// Legal pairs of the queries in each block of `block` canonical indices.
[[nodiscard]] std::vector<std::int64_t> pairs_per_block(const Visibility& visibility, std::int64_t num_tokens,
                                                        std::int64_t block);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/key_blocks.hpp"

#include <algorithm>

namespace marble {
namespace {

/// Cuts the pieces at span and block borders.
std::vector<Fragment> cut_fragments(std::span<const Piece> pieces, const CanonicalOrder& order, std::int64_t block) {
  std::vector<Fragment> fragments;
  auto span = order.spans.begin();
  for (const Piece& piece : pieces) {
    span =
        std::upper_bound(span, order.spans.end(), piece.canonical,
                         [](std::int64_t canonical, const CanonicalSpan& s) { return canonical < s.canonical_end(); });
    std::int64_t canonical = piece.canonical, row = piece.row;
    const std::int64_t end = piece.canonical + piece.length;
    while (canonical < end) {
      while (span->canonical_end() <= canonical) ++span;
      const std::int64_t length = std::min({end - canonical, span->canonical_end() - canonical, block - row % block});
      fragments.push_back({row, length, canonical, span - order.spans.begin()});
      canonical += length;
      row += length;
    }
  }
  return fragments;
}

/// Sorts and joins intervals that overlap or touch.
void join(std::vector<Interval>& intervals) {
  const auto by_begin = [](const Interval& a, const Interval& b) { return a.begin < b.begin; };
  if (!std::is_sorted(intervals.begin(), intervals.end(), by_begin))
    std::sort(intervals.begin(), intervals.end(), by_begin);
  std::size_t kept = 0;
  for (const Interval& interval : intervals) {
    if (kept > 0 && interval.begin <= intervals[kept - 1].end)
      intervals[kept - 1].end = std::max(intervals[kept - 1].end, interval.end);
    else
      intervals[kept++] = interval;
  }
  intervals.resize(kept);
}

/// What two ascending, disjoint lists share.
std::vector<Interval> intersect(std::span<const Interval> a, std::span<const Interval> b) {
  std::vector<Interval> result;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (both.begin < both.end) result.push_back(both);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return result;
}

/// Summarises one block after another, reusing its scratch lists.
class Summariser {
 public:
  Summariser(const Visibility& visibility, KeyBlocks& result) : visibility_(visibility), result_(result) {}

  void add_block(const SectionRange& fragments, std::int32_t rows, bool whole) {
    visible_.clear();
    bool first = true;
    for (std::int64_t f = fragments.begin; f < fragments.end; ++f) {
      add_fragment(result_.fragments[static_cast<std::size_t>(f)], first);
      first = false;
    }
    join(visible_);
    if (!whole) full_.clear();
    result_.blocks.push_back({fragments, store(visible_), store(full_), rows});
  }

 private:
  /// Both ends of a rule ascend with the key, so over consecutive keys the union of ranges runs from the first key's
  /// low end to the last key's high end, and their intersection from the last low end to the first high end.
  void add_fragment(const Fragment& fragment, bool first) {
    all_.clear();
    const std::int64_t end = fragment.canonical + fragment.length;
    for (const VisibleEntry& entry : visibility_.of_span(fragment.span)) {
      const std::int64_t key_begin = std::max(fragment.canonical, entry.key_begin);
      const std::int64_t key_end = std::min(end, entry.key_end);
      if (key_begin >= key_end) continue;
      visible_.push_back({entry.rule.lo(key_begin), entry.rule.hi(key_end - 1)});
      const Interval all{entry.rule.lo(key_end - 1), entry.rule.hi(key_begin)};
      if (key_end - key_begin == fragment.length && all.begin < all.end) all_.push_back(all);
    }
    join(all_);
    if (first)
      full_ = all_;
    else if (!full_.empty())
      full_ = intersect(full_, all_);
  }

  SectionRange store(const std::vector<Interval>& intervals) {
    const auto begin = static_cast<std::int64_t>(result_.intervals.size());
    result_.intervals.insert(result_.intervals.end(), intervals.begin(), intervals.end());
    return {begin, begin + static_cast<std::int64_t>(intervals.size())};
  }

  const Visibility& visibility_;
  KeyBlocks& result_;
  std::vector<Interval> visible_, full_, all_;
};

}  // namespace

KeyBlocks summarise_key_blocks(std::span<const Piece> pieces, const CanonicalOrder& order, const Visibility& visibility,
                               std::int64_t block) {
  KeyBlocks result;
  result.fragments = cut_fragments(pieces, order, block);
  const auto count = static_cast<std::int64_t>(result.fragments.size());
  Summariser summariser(visibility, result);
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t index = result.fragments[static_cast<std::size_t>(begin)].row / block;
    std::int64_t end = begin, rows = 0;
    for (; end < count && result.fragments[static_cast<std::size_t>(end)].row / block == index; ++end)
      rows += result.fragments[static_cast<std::size_t>(end)].length;
    summariser.add_block({begin, end}, static_cast<std::int32_t>(rows), rows == block);
    begin = end;
  }
  return result;
}

}  // namespace marble

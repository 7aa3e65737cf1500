// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/key_rows.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace marble {
namespace {

Segment make_segment(std::int64_t row, std::int64_t length, std::int64_t canonical) {
  Segment segment;
  segment.row = row;
  segment.length = length;
  segment.canonical = canonical;
  return segment;
}

const std::vector<Segment> kSegments = {make_segment(0, 3, 10), make_segment(3, 2, 20), make_segment(5, 4, 22)};

TEST(KeyRows, FindsTheFirstRowAtOrAfterACanonicalIndex) {
  const std::pair<std::int64_t, std::int64_t> expected[] = {{0, 0},  {10, 0}, {12, 2}, {13, 3}, {20, 3},
                                                            {21, 4}, {22, 5}, {25, 8}, {26, 9}, {99, 9}};
  for (const auto& [canonical, row] : expected)
    EXPECT_EQ(row_lower_bound(kSegments.data(), 3, canonical), row) << canonical;
  EXPECT_EQ(row_lower_bound(nullptr, 0, 5), 0);
}

TEST(KeyRows, FindsTheSegmentOfARow) {
  for (std::int64_t row = 0; row < 9; ++row)
    EXPECT_EQ(segment_of_row(kSegments.data(), 3, row), row < 3 ? 0 : (row < 5 ? 1 : 2));
  EXPECT_EQ(segment_of_row(kSegments.data(), 3, 9), 3);
  const Segment later = make_segment(4, 1, 0);
  EXPECT_EQ(segment_of_row(&later, 1, 3), 1);
}

TEST(KeyRows, TurnsAVisibleRuleIntoRowsLikeAScan) {
  std::mt19937 random(3);
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n)); };
  for (int trial = 0; trial < 500; ++trial) {
    VisibleRule rule;
    rule.lo_min = below(30);
    if (below(2) == 0) rule.lo_offset = below(10) - 5;
    rule.hi_min = below(30);
    rule.hi_max = rule.hi_min + below(10);
    if (below(2) == 0) rule.hi_offset = below(12);
    const Segment key = make_segment(0, 5, below(25));
    for (std::int64_t offset = 0; offset < key.length; ++offset) {
      const RowInterval rows = visible_rows(key, offset, rule, kSegments.data(), 3);
      for (const Segment& segment : kSegments)
        for (std::int64_t i = 0; i < segment.length; ++i) {
          const std::int64_t canonical = segment.canonical + i;
          const std::int64_t k = key.canonical + offset;
          const bool visible = rule.lo(k) <= canonical && canonical < rule.hi(k);
          EXPECT_EQ(rows.lo <= segment.row + i && segment.row + i < rows.hi, visible);
        }
    }
  }
}

}  // namespace
}  // namespace marble

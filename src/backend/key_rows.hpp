// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What partial blocks are tested against, expanded from a rank plan's segments when it is bound: per key row the
// interval of query rows that may see it, or per row the four tracks. Host and device use the same arithmetic.
//
// Canonical indices ascend with the row on every rank, so the canonical interval of a VisibleRule is one row interval.

#include "marble/mask.hpp"
#include "marble/rank_plan.hpp"

#include <cstdint>

namespace marble {

/// Query rows [lo, hi) of this rank's storage.
struct RowInterval {
  std::int32_t lo = 0;
  std::int32_t hi = 0;
};

/// The entry of `segments`, which ascend in row, that holds `row`; `count` when none does.
MARBLE_HOST_DEVICE constexpr std::int64_t segment_of_row(const Segment* segments, std::int64_t count,
                                                         std::int64_t row) {
  std::int64_t begin = 0;
  std::int64_t end = count;
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (segments[middle].row + segments[middle].length <= row)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin < count && segments[begin].row <= row ? begin : count;
}

/// The first row whose canonical index is at least `canonical`, or the row after the last one.
MARBLE_HOST_DEVICE constexpr std::int64_t row_lower_bound(const Segment* segments, std::int64_t count,
                                                          std::int64_t canonical) {
  std::int64_t begin = 0;
  std::int64_t end = count;
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (segments[middle].canonical + segments[middle].length <= canonical)
      begin = middle + 1;
    else
      end = middle;
  }
  if (begin == count) return count == 0 ? 0 : segments[count - 1].row + segments[count - 1].length;
  const std::int64_t inside = canonical - segments[begin].canonical;
  return segments[begin].row + (inside > 0 ? inside : 0);
}

/// The query rows that may see the key at `offset` within its segment.
MARBLE_HOST_DEVICE constexpr RowInterval visible_rows(const Segment& key_segment, std::int64_t offset,
                                                      const VisibleRule& rule, const Segment* query_segments,
                                                      std::int64_t num_query_segments) {
  const std::int64_t canonical = key_segment.canonical + offset;
  const std::int64_t lo = rule.lo(canonical);
  const std::int64_t hi = rule.hi(canonical);
  if (lo >= hi) return {};
  return {static_cast<std::int32_t>(row_lower_bound(query_segments, num_query_segments, lo)),
          static_cast<std::int32_t>(row_lower_bound(query_segments, num_query_segments, hi))};
}

MARBLE_HOST_DEVICE constexpr TokenTracks tracks_of(const Segment& segment, std::int64_t offset) {
  return {segment.sample, segment.segment, segment.noise, segment.position + offset};
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which ring ranks store queries of some canonical intervals: block pairs are looked for at these ranks alone, so that
// planning takes time in proportion to the ranks that see each other, not to the ring's square.

#include "plan/key_blocks.hpp"

#include "marble/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// Of one thread: lookups share scratch memory.
class QueryRanks {
 public:
  /// `pieces`: of all ring ranks, in ascending canonical index; they outlive this.
  QueryRanks(std::span<const Piece> pieces, std::int32_t ring)
      : pieces_(pieces), found_at_(static_cast<std::size_t>(ring), -1) {}

  /// Each rank once, in no order; valid until the next call. Stops when all are found: O(log pieces) an interval, and
  /// the pieces that it meets until then.
  [[nodiscard]] std::span<const std::int32_t> of(std::span<const Interval> intervals) {
    ranks_.clear();
    ++lookup_;
    for (const Interval& interval : intervals) add(interval);
    return ranks_;
  }

 private:
  void add(const Interval& interval) {
    const auto ends_before = [](const Piece& piece, std::int64_t begin) {
      return piece.canonical + piece.length <= begin;
    };
    auto piece = std::lower_bound(pieces_.begin(), pieces_.end(), interval.begin, ends_before);
    for (; piece != pieces_.end() && piece->canonical < interval.end && ranks_.size() < found_at_.size(); ++piece) {
      std::int64_t& found_at = found_at_[static_cast<std::size_t>(piece->ring_rank)];
      if (found_at == lookup_) continue;
      found_at = lookup_;
      ranks_.push_back(piece->ring_rank);
    }
  }

  std::span<const Piece> pieces_;
  std::vector<std::int64_t> found_at_;  // by ring rank: the last lookup that found it
  std::int64_t lookup_ = 0;
  std::vector<std::int32_t> ranks_;
};

}  // namespace marble

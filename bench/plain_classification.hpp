// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The paper's planner as its text describes it (section 03), for comparison: minimum and maximum of each track per
// block, a small bitmap of the segments in it, and one test per block pair.

#include "marble/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace marble {

struct BlockSummary {
  struct Range {
    std::int64_t min = std::numeric_limits<std::int64_t>::max();
    std::int64_t max = std::numeric_limits<std::int64_t>::min();
    void add(std::int64_t value) { min = std::min(min, value), max = std::max(max, value); }
    [[nodiscard]] bool single() const { return min == max; }
    [[nodiscard]] bool meets(const Range& other) const { return min <= other.max && other.min <= max; }
  };
  Range sample, segment, noise, position;
  std::uint64_t segments = 0;  // bit (id mod 64) of every segment >= 0
};

inline std::vector<BlockSummary> summarise(const Tracks& tracks, std::span<const std::int64_t> positions,
                                           std::int64_t block) {
  std::vector<BlockSummary> summaries;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    if (row % static_cast<std::size_t>(block) == 0) summaries.emplace_back();
    const auto p = static_cast<std::size_t>(positions[row]);
    BlockSummary& summary = summaries.back();
    summary.sample.add(tracks.sample[p]);
    summary.segment.add(tracks.segment[p]);
    summary.noise.add(tracks.noise[p]);
    summary.position.add(positions[row]);
    if (tracks.segment[p] >= 0) summary.segments |= std::uint64_t{1} << (tracks.segment[p] % 64);
  }
  return summaries;
}

enum class PairClass { empty, partial, full };

inline PairClass classify(const BlockSummary& q, const BlockSummary& k, std::int64_t window) {
  if (!q.sample.meets(k.sample)) return PairClass::empty;
  const std::int64_t nearest = q.position.min - k.position.max, farthest = q.position.max - k.position.min;
  const bool some_causal = farthest >= 0 && (window == 0 || nearest < window);
  const bool some_segment = (q.segments & k.segments) != 0 && q.segment.meets(k.segment);
  const bool some_kept = k.noise.min < 0 || q.noise.meets(k.noise);
  if (!(some_causal || some_segment) || !some_kept) return PairClass::empty;
  const bool one_sample = q.sample.single() && k.sample.single();
  const bool all_causal = nearest >= 0 && (window == 0 || farthest < window);
  const bool all_segment =
      q.segment.single() && k.segment.single() && q.segment.min == k.segment.min && q.segment.min >= 0;
  const bool all_kept = k.noise.max < 0 || (q.noise.single() && k.noise.single() && q.noise.min == k.noise.min);
  return one_sample && all_kept && (all_causal || all_segment) ? PairClass::full : PairClass::partial;
}

}  // namespace marble

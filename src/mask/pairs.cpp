// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Counts of legal pairs in closed form.

#include "mask/boundary_sums.hpp"
#include "mask/visibility.hpp"

#include "marble/error.hpp"
#include "marble/mask.hpp"

#include <algorithm>

namespace marble {
namespace {

/// 0 + 1 + … + (n - 1)
constexpr std::int64_t triangle(std::int64_t n) {
  return n * (n - 1) / 2;
}

/// An edge that only moves up never meets `high`.
constexpr std::int64_t kUnbounded = std::int64_t{1} << 60;

EdgeSplit split_edge(const VisibleEntry& entry, std::int64_t offset, std::int64_t low, std::int64_t high) {
  const std::int64_t keys = entry.key_end - entry.key_begin;
  if (offset == VisibleRule::kNoOffset) return {low, high, keys, 0, 0, low};
  const std::int64_t at_low = std::clamp<std::int64_t>(low - offset + 1 - entry.key_begin, 0, keys);
  const std::int64_t at_high = std::clamp<std::int64_t>(entry.key_end - (high - offset), 0, keys - at_low);
  return {low, high, at_low, keys - at_low - at_high, at_high, entry.key_begin + at_low + offset};
}

std::int64_t sum_edge(const EdgeSplit& edge) {
  return edge.at_low * edge.low + edge.moving * edge.first + triangle(edge.moving) + edge.at_high * edge.high;
}

}  // namespace

EdgeSplit split_lo(const VisibleEntry& entry) {
  return split_edge(entry, entry.rule.lo_offset, entry.rule.lo_min, kUnbounded);
}

EdgeSplit split_hi(const VisibleEntry& entry) {
  const std::int64_t low = std::min(entry.rule.hi_min, entry.rule.hi_max);
  return split_edge(entry, entry.rule.hi_offset, low, entry.rule.hi_max);
}

std::int64_t count_pairs(const VisibleEntry& entry) {
  return sum_edge(split_hi(entry)) - sum_edge(split_lo(entry));
}

std::vector<std::int64_t> pairs_per_block(const Visibility& visibility, std::int64_t num_tokens, std::int64_t block) {
  std::vector<std::int64_t> boundaries;
  for (std::int64_t end = block; end - block < num_tokens; end += block)
    boundaries.push_back(std::min(end, num_tokens));
  BoundarySums sums(std::move(boundaries), block);
  for (const VisibleEntry& entry : visibility.entries) sums.add(entry);
  std::vector<std::int64_t> result(sums.size());
  sums.evaluate(result);
  return result;
}

void validate(const MaskRule& rule) {
  require(rule.window >= 0, "window {} is negative; 0 means no window", rule.window);
  require(!rule.clamp || rule.window > 0, "clamp needs a window of at least 1");
}

std::int64_t count_legal_pairs(const Layout& layout, const MaskRule& rule) {
  validate(rule);
  // The order in which more masks have closed forms.
  const Canonical canonical = rule.window == 0 ? Canonical::stack : Canonical::sequence;
  const Visibility visibility = make_visibility(canonical_order(layout, canonical), canonical, rule);
  std::int64_t pairs = 0;
  for (const VisibleEntry& entry : visibility.entries) pairs += count_pairs(entry);
  return pairs;
}

std::string_view to_string(Canonical canonical) {
  return canonical == Canonical::stack ? "stack" : "sequence";
}

}  // namespace marble

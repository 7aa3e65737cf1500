// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Counts of legal pairs in closed form.

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

/// Twice the sum of a piecewise-linear count over all queries below x is a quadratic in x between its breakpoints. This
/// adds breakpoints, each at the first block boundary that does not precede it, and evaluates all boundaries in one
/// walk. Coefficients wrap modulo 2^64 and cancel exactly, since every final sum is below 2^63.
class BoundarySums {
 public:
  BoundarySums(std::int64_t num_tokens, std::int64_t block)
      : num_tokens_(num_tokens),
        block_(block),
        terms_(static_cast<std::size_t>((num_tokens + block - 1) / block) + 1) {}

  /// `sign` x the number of keys whose edge is at most q, as a function of q.
  void add_edge(const EdgeSplit& edge, std::int64_t sign) {
    if (edge.at_low > 0) add_jump(edge.low, sign * edge.at_low);
    if (edge.moving > 0) {
      add_ramp(edge.first, sign);
      add_ramp(edge.first + edge.moving, -sign);
    }
    if (edge.at_high > 0) add_jump(edge.high, sign * edge.at_high);
  }

  [[nodiscard]] std::vector<std::int64_t> per_block() const {
    std::vector<std::int64_t> result(terms_.size() - 1);
    Term sum = terms_[0];
    std::uint64_t before = 0;
    for (std::size_t b = 0; b < result.size(); ++b) {
      sum.add(terms_[b + 1]);
      const auto x = static_cast<std::uint64_t>(std::min(static_cast<std::int64_t>(b + 1) * block_, num_tokens_));
      const std::uint64_t twice = (sum.square * x + sum.linear) * x + sum.constant;
      result[b] = static_cast<std::int64_t>((twice - before) / 2);
      before = twice;
    }
    return result;
  }

 private:
  struct Term {
    std::uint64_t square = 0, linear = 0, constant = 0;
    void add(const Term& other) {
      square += other.square;
      linear += other.linear;
      constant += other.constant;
    }
  };

  Term& at(std::int64_t point) { return terms_[static_cast<std::size_t>((point + block_ - 1) / block_)]; }

  /// The count grows by n from q = point on: n (x - point) below x.
  void add_jump(std::int64_t point, std::int64_t n) {
    const auto p = static_cast<std::uint64_t>(point), m = static_cast<std::uint64_t>(n);
    at(point).add({0, 2 * m, -(2 * m * p)});
  }

  /// The count grows by `slope` at every q from `point` on: slope (x - point)(x - point + 1) / 2 below x.
  void add_ramp(std::int64_t point, std::int64_t slope) {
    const auto p = static_cast<std::uint64_t>(point), s = static_cast<std::uint64_t>(slope);
    at(point).add({s, s * (1 - 2 * p), s * (p * p - p)});
  }

  std::int64_t num_tokens_;
  std::int64_t block_;
  std::vector<Term> terms_;  // terms_[b]: what begins to count at boundary b
};

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
  BoundarySums sums(num_tokens, block);
  for (const VisibleEntry& entry : visibility.entries) {
    sums.add_edge(split_lo(entry), 1);
    sums.add_edge(split_hi(entry), -1);
  }
  return sums.per_block();
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

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "mask/boundary_sums.hpp"

#include <algorithm>

namespace marble {

BoundarySums::BoundarySums(std::vector<std::int64_t> boundaries, std::int64_t block)
    : boundaries_(std::move(boundaries)), block_(block), terms_(boundaries_.size() + 1) {
  const std::int64_t tokens = boundaries_.empty() ? 0 : boundaries_.back();
  std::int32_t boundary = 0;
  for (std::int64_t begin = 0; begin < tokens + block; begin += block) {
    while (static_cast<std::size_t>(boundary) < boundaries_.size() &&
           boundaries_[static_cast<std::size_t>(boundary)] < std::min(begin, tokens))
      ++boundary;
    first_boundary_.push_back(boundary);
  }
}

void BoundarySums::clear() {
  std::fill(terms_.begin(), terms_.end(), Term{});
}

void BoundarySums::add_edge(const EdgeSplit& edge, std::int64_t sign) {
  if (edge.at_low > 0) add_jump(edge.low, sign * edge.at_low);
  if (edge.moving > 0) {
    add_ramp(edge.first, sign);
    add_ramp(edge.first + edge.moving, -sign);
  }
  if (edge.at_high > 0) add_jump(edge.high, sign * edge.at_high);
}

void BoundarySums::add_jump(std::int64_t point, std::int64_t n) {
  const auto p = static_cast<std::uint64_t>(point), m = static_cast<std::uint64_t>(n);
  at(point).add({0, 2 * m, -(2 * m * p)});
}

void BoundarySums::add_ramp(std::int64_t point, std::int64_t slope) {
  const auto p = static_cast<std::uint64_t>(point), s = static_cast<std::uint64_t>(slope);
  at(point).add({s, s * (1 - 2 * p), s * (p * p - p)});
}

void BoundarySums::evaluate(std::span<std::int64_t> result) const {
  Term sum;
  std::uint64_t before = 0;
  for (std::size_t b = 0; b < boundaries_.size(); ++b) {
    sum.add(terms_[b]);
    const auto x = static_cast<std::uint64_t>(boundaries_[b]);
    const std::uint64_t twice = (sum.square * x + sum.linear) * x + sum.constant;
    result[b] = static_cast<std::int64_t>((twice - before) / 2);
    before = twice;
  }
}

}  // namespace marble

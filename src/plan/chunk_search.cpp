// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/chunk_search.hpp"

#include <algorithm>
#include <numeric>

namespace marble {

ChunkSearch::ChunkSearch(const ChunkPairs& pairs, std::vector<std::int32_t> owners, std::int32_t ring)
    : pairs_(&pairs), ring_(ring), owners_(std::move(owners)) {
  const std::int64_t chunks = pairs.num_chunks;
  to_rank_.assign(static_cast<std::size_t>(chunks * ring_), 0);
  from_rank_.assign(to_rank_.size(), 0);
  work_.assign(static_cast<std::size_t>(ring_ * ring_), 0);
  for (std::int64_t a = 0; a < chunks; ++a)
    for (std::int64_t b = 0; b < chunks; ++b) {
      const std::int64_t i = owners_[static_cast<std::size_t>(a)], j = owners_[static_cast<std::size_t>(b)];
      const std::int64_t value = pairs.at(a, b);
      to_rank_[static_cast<std::size_t>(a * ring_ + j)] += value;
      from_rank_[static_cast<std::size_t>(b * ring_ + i)] += value;
      work(i, j) += value;
    }
  cost_ = measure();
}

std::int64_t ChunkSearch::measure() const {
  std::int64_t sum = 0;
  for (std::int64_t s = 0; s < ring_; ++s) {
    std::int64_t slowest = 0;
    for (std::int64_t r = 0, j = (ring_ - s) % ring_; r < ring_; ++r, j = j + 1 == ring_ ? 0 : j + 1)
      slowest = std::max(slowest, work_[static_cast<std::size_t>(r * ring_ + j)]);
    sum += slowest;
  }
  return sum;
}

template <typename Fn>
void ChunkSearch::for_each_change(std::int64_t a, std::int64_t b, Fn&& fn) const {
  const std::int64_t i = owners_[static_cast<std::size_t>(a)], j = owners_[static_cast<std::size_t>(b)];
  for (std::int64_t x = 0; x < ring_; ++x) {
    if (x == i || x == j) continue;
    const std::int64_t keys = from_rank(x, b) - from_rank(x, a), queries = to_rank(b, x) - to_rank(a, x);
    fn(x, i, keys), fn(x, j, -keys), fn(i, x, queries), fn(j, x, -queries);
  }
  // Inside the two ranks both sides change: the terms of the pairs (a, a), (a, b), (b, a), (b, b) are corrected.
  const std::int64_t cross = pairs_->at(a, a) - pairs_->at(a, b) - pairs_->at(b, a) + pairs_->at(b, b);
  fn(i, i, to_rank(b, i) - to_rank(a, i) + from_rank(i, b) - from_rank(i, a) + cross);
  fn(j, j, to_rank(a, j) - to_rank(b, j) + from_rank(j, a) - from_rank(j, b) + cross);
  fn(i, j, to_rank(b, j) - to_rank(a, j) + from_rank(i, a) - from_rank(i, b) - cross);
  fn(j, i, to_rank(a, i) - to_rank(b, i) + from_rank(j, b) - from_rank(j, a) - cross);
}

void ChunkSearch::swap(std::int64_t a, std::int64_t b) {
  for_each_change(a, b, [&](std::int64_t q, std::int64_t k, std::int64_t change) { work(q, k) += change; });
  const std::int64_t i = owners_[static_cast<std::size_t>(a)], j = owners_[static_cast<std::size_t>(b)];
  for (std::int64_t c = 0; c < pairs_->num_chunks; ++c) {
    const std::int64_t keys = pairs_->at(c, b) - pairs_->at(c, a), queries = pairs_->at(b, c) - pairs_->at(a, c);
    to_rank_[static_cast<std::size_t>(c * ring_ + i)] += keys;
    to_rank_[static_cast<std::size_t>(c * ring_ + j)] -= keys;
    from_rank_[static_cast<std::size_t>(c * ring_ + i)] += queries;
    from_rank_[static_cast<std::size_t>(c * ring_ + j)] -= queries;
  }
  std::swap(owners_[static_cast<std::size_t>(a)], owners_[static_cast<std::size_t>(b)]);
  cost_ = measure();
}

bool ChunkSearch::try_for_squares(std::int64_t a, std::int64_t b) {
  double growth = 0.0;
  for_each_change(a, b, [&](std::int64_t q, std::int64_t k, std::int64_t change) {
    const auto d = static_cast<double>(change);
    growth += d * (2.0 * static_cast<double>(work(q, k)) + d);
  });
  if (growth >= 0.0) return false;
  swap(a, b);
  return true;
}

bool ChunkSearch::try_for_cost(std::int64_t a, std::int64_t b) {
  const auto apply = [&](std::int64_t sign) {
    for_each_change(a, b, [&](std::int64_t q, std::int64_t k, std::int64_t change) { work(q, k) += sign * change; });
  };
  apply(1);
  const std::int64_t after = measure();
  apply(-1);
  if (after >= cost_) return false;
  swap(a, b);
  return true;
}

/// Ranks by how much they hold the steps up: the time by which each, as a step's slowest, exceeds that step's mean.
std::vector<std::int32_t> ChunkSearch::ranks_by_blame() const {
  std::vector<std::int64_t> blame(static_cast<std::size_t>(ring_), 0);
  for (std::int64_t s = 0; s < ring_; ++s) {
    std::int64_t slowest = -1, who = 0, sum = 0;
    for (std::int64_t r = 0; r < ring_; ++r) {
      const std::int64_t value = work_[static_cast<std::size_t>(r * ring_ + (r + ring_ - s) % ring_)];
      sum += value;
      if (value > slowest) slowest = value, who = r;
    }
    blame[static_cast<std::size_t>(who)] += slowest - sum / ring_;
  }
  std::vector<std::int32_t> ranks(blame.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::int32_t x, std::int32_t y) {
    return blame[static_cast<std::size_t>(x)] > blame[static_cast<std::size_t>(y)];
  });
  return ranks;
}

template <typename Try>
void ChunkSearch::climb(std::span<const std::int32_t> group, std::int64_t cells_a_try, std::int64_t& budget,
                        Try&& try_swap) {
  const std::int64_t chunks = pairs_->num_chunks;
  for (bool improved = true; improved;) {
    improved = false;
    for (const std::int32_t rank : ranks_by_blame())
      for (std::int64_t a = 0; a < chunks; ++a) {
        if (owners_[static_cast<std::size_t>(a)] != rank) continue;
        for (std::int64_t b = 0; b < chunks; ++b) {
          if (owners_[static_cast<std::size_t>(b)] == rank ||
              group[static_cast<std::size_t>(a)] != group[static_cast<std::size_t>(b)])
            continue;
          budget -= cells_a_try;
          if (budget < 0) return;
          if (!try_swap(a, b)) continue;
          improved = true;
          break;  // chunk a is another rank's now
        }
      }
  }
}

void ChunkSearch::improve(std::span<const std::int32_t> group, std::int64_t budget) {
  const auto lower_cost = [&](ChunkSearch& search) {
    std::int64_t left = budget / 3;
    search.climb(group, 8 * ring_ + ring_ * ring_, left,
                 [&](std::int64_t a, std::int64_t b) { return search.try_for_cost(a, b); });
  };
  ChunkSearch detour = *this;
  std::int64_t left = budget / 3;
  detour.climb(group, 4 * ring_, left, [&](std::int64_t a, std::int64_t b) { return detour.try_for_squares(a, b); });
  lower_cost(detour);
  lower_cost(*this);
  if (detour.cost_ < cost_) *this = std::move(detour);
}

}  // namespace marble

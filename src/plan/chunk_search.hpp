// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which rank takes which chunk: greedy swaps on the paper's cost C (section 03, "Chunked ring attention"),
//   C = sum over steps s of max over ranks r of W[r, (r - s) mod R]  +  tau R k
// where W[r, j] are the legal pairs of rank r's queries with rank j's keys.

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// Legal pairs of chunk a's queries with chunk b's keys, at [a * num_chunks + b].
struct ChunkPairs {
  std::int64_t num_chunks = 0;
  std::vector<std::int64_t> pairs;

  [[nodiscard]] std::int64_t at(std::int64_t a, std::int64_t b) const {
    return pairs[static_cast<std::size_t>(a * num_chunks + b)];
  }
};

/// Invariants, kept through every swap: to_rank(a, j) are the pairs of chunk a's queries with rank j's keys,
/// from_rank(i, b) those of rank i's queries with chunk b's keys, and work(i, j) those of rank i with rank j.
class ChunkSearch {
 public:
  ChunkSearch(const ChunkPairs& pairs, std::vector<std::int32_t> owners, std::int32_t ring);

  /// The sum of each step's slowest rank.
  [[nodiscard]] std::int64_t cost() const { return cost_; }
  [[nodiscard]] const std::vector<std::int32_t>& owners() const { return owners_; }

  /// Swaps chunks of equal `group` between ranks while that lowers the cost, looking at about `budget` matrix cells at
  /// most; the same again after a detour that lowers the sum of squares of the work matrix, which has a slope where the
  /// cost is flat; keeps the better.
  void improve(std::span<const std::int32_t> group, std::int64_t budget);

 private:
  [[nodiscard]] std::int64_t& work(std::int64_t i, std::int64_t j) {
    return work_[static_cast<std::size_t>(i * ring_ + j)];
  }
  [[nodiscard]] std::int64_t to_rank(std::int64_t a, std::int64_t j) const {
    return to_rank_[static_cast<std::size_t>(a * ring_ + j)];
  }
  [[nodiscard]] std::int64_t from_rank(std::int64_t i, std::int64_t b) const {
    return from_rank_[static_cast<std::size_t>(b * ring_ + i)];
  }
  [[nodiscard]] std::int64_t measure() const;
  /// fn(query rank, key rank, change of work) for every cell that changes when chunks a and b change places.
  template <typename Fn>
  void for_each_change(std::int64_t a, std::int64_t b, Fn&& fn) const;
  void swap(std::int64_t a, std::int64_t b);
  bool try_for_squares(std::int64_t a, std::int64_t b);
  bool try_for_cost(std::int64_t a, std::int64_t b);
  /// Tries swaps, those of the most blamed ranks first, until none helps or the budget is spent.
  template <typename Try>
  void climb(std::span<const std::int32_t> group, std::int64_t cells_a_try, std::int64_t& budget, Try&& try_swap);
  [[nodiscard]] std::vector<std::int32_t> ranks_by_blame() const;

  const ChunkPairs* pairs_;
  std::int64_t ring_;
  std::vector<std::int32_t> owners_;
  std::vector<std::int64_t> to_rank_, from_rank_, work_;
  std::int64_t cost_ = 0;
};

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Legal pairs of the queries between boundaries of the canonical order, summed over keys without touching tokens.

#include "mask/visibility.hpp"

#include <cstdint>
#include <vector>

namespace marble {

/// The number of keys that a query sees is piecewise linear in its index, so its sum below x is half a quadratic in x
/// between breakpoints. Breakpoints are added at the first boundary that does not precede them, and one walk evaluates
/// all boundaries. Coefficients wrap modulo 2^64 and cancel exactly, since every final sum is below 2^63.
class BoundarySums {
 public:
  /// `boundaries` ascend; all but the last are multiples of `block`; the last one is the number of tokens.
  BoundarySums(std::vector<std::int64_t> boundaries, std::int64_t block);

  void add(const VisibleEntry& entry) {
    add_edge(split_lo(entry), 1);
    add_edge(split_hi(entry), -1);
  }
  void clear();

  /// Pairs of the queries in [boundary i - 1, boundary i), the first one from 0; `result` has an entry a boundary.
  void evaluate(std::span<std::int64_t> result) const;
  [[nodiscard]] std::size_t size() const { return boundaries_.size(); }

 private:
  struct Term {
    std::uint64_t square = 0, linear = 0, constant = 0;
    void add(const Term& other) {
      square += other.square;
      linear += other.linear;
      constant += other.constant;
    }
  };

  Term& at(std::int64_t point) {
    return terms_[static_cast<std::size_t>(first_boundary_[static_cast<std::size_t>((point + block_ - 1) / block_)])];
  }

  /// `sign` x the number of keys whose edge is at most q, as a function of q.
  void add_edge(const EdgeSplit& edge, std::int64_t sign);
  /// The count grows by n from q = point on: n (x - point) below x.
  void add_jump(std::int64_t point, std::int64_t n);
  /// The count grows by `slope` at every q from `point` on: slope (x - point)(x - point + 1) / 2 below x.
  void add_ramp(std::int64_t point, std::int64_t slope);

  std::vector<std::int64_t> boundaries_;
  std::int64_t block_;
  std::vector<std::int32_t> first_boundary_;  // by block index: the first boundary at or beyond its begin
  std::vector<Term> terms_;                   // what begins to count at each boundary
};

}  // namespace marble

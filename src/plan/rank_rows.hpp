// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From canonical index to row of one ring rank's storage.

#include "marble/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// Invariant: rows ascend with the canonical index, so any canonical interval is an interval of rows.
class RankRows {
 public:
  /// `pieces`: those of one ring rank, ascending.
  RankRows(std::vector<Piece> pieces, std::int64_t num_tokens);

  /// Tokens of this rank with a canonical index below `canonical`, in [0, num_tokens]. O(1) when pieces lie evenly.
  [[nodiscard]] std::int64_t before(std::int64_t canonical) const {
    const Piece& piece = pieces_[piece_at(canonical)];
    return piece.row + std::clamp<std::int64_t>(canonical - piece.canonical, 0, piece.length);
  }
  /// The sum of before(i) for i below `canonical`.
  [[nodiscard]] std::int64_t before_sum(std::int64_t canonical) const;
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::span<const Piece> pieces() const { return {pieces_.data(), pieces_.size() - 1}; }

 private:
  /// The first piece that ends beyond `canonical`; the sentinel when none does.
  [[nodiscard]] std::size_t piece_at(std::int64_t canonical) const {
    const auto stride = static_cast<std::size_t>(canonical >> stride_bits_);
    auto p = static_cast<std::size_t>(first_piece_[stride]), last = static_cast<std::size_t>(first_piece_[stride + 1]);
    while (p < last) {
      const std::size_t middle = p + (last - p) / 2;
      if (pieces_[middle].canonical + pieces_[middle].length <= canonical)
        p = middle + 1;
      else
        last = middle;
    }
    return p;
  }

  std::vector<Piece> pieces_;              // and an empty sentinel that ends beyond every index
  std::vector<std::int32_t> first_piece_;  // by stride of the canonical order: the first that ends beyond its begin
  std::vector<std::int64_t> sum_;          // before_sum at each piece's begin
  int stride_bits_ = 0;                    // strides are about as many as pieces, whatever the number of ranks
  std::int64_t size_ = 0;
};

/// The pieces of one ring rank.
[[nodiscard]] std::vector<Piece> pieces_of(const Plan& plan, std::int32_t ring_rank);

}  // namespace marble

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
  RankRows(std::vector<Piece> pieces, std::int64_t num_tokens, std::int64_t block);

  /// Tokens of this rank with a canonical index below `canonical`, in [0, num_tokens]. O(1) when pieces are blocks.
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
    auto p = static_cast<std::size_t>(first_piece_[static_cast<std::size_t>(canonical / block_)]);
    while (pieces_[p].canonical + pieces_[p].length <= canonical) ++p;
    return p;
  }

  std::vector<Piece> pieces_;              // and an empty sentinel that ends beyond every index
  std::vector<std::int32_t> first_piece_;  // by canonical block: the first piece that ends beyond the block's begin
  std::vector<std::int64_t> sum_;          // before_sum at each piece's begin
  std::int64_t block_;
  std::int64_t size_ = 0;
};

/// The pieces of one ring rank.
[[nodiscard]] std::vector<Piece> pieces_of(const Plan& plan, std::int32_t ring_rank);

}  // namespace marble

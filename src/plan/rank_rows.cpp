// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/rank_rows.hpp"

#include <algorithm>

namespace marble {

RankRows::RankRows(std::vector<Piece> pieces, std::int64_t num_tokens) : pieces_(std::move(pieces)) {
  for (const Piece& piece : pieces_) size_ += piece.length;
  constexpr std::int64_t kBeyond = std::int64_t{1} << 61, kStridesPerPiece = 4;
  pieces_.push_back({.canonical = num_tokens, .length = 0, .row = size_});
  const std::int64_t strides = kStridesPerPiece * static_cast<std::int64_t>(pieces_.size());
  while ((num_tokens >> stride_bits_) > strides) ++stride_bits_;
  first_piece_.resize(static_cast<std::size_t>(num_tokens >> stride_bits_) + 2);
  std::size_t p = 0;
  for (std::size_t s = 0; s < first_piece_.size(); ++s) {
    const std::int64_t begin = static_cast<std::int64_t>(s) << stride_bits_;
    while (p + 1 < pieces_.size() && pieces_[p].canonical + pieces_[p].length <= begin) ++p;
    first_piece_[s] = static_cast<std::int32_t>(p);
  }
  sum_.reserve(pieces_.size());
  std::int64_t sum = 0, at = 0, row = 0;
  for (const Piece& piece : pieces_) {
    sum += row * (piece.canonical - at);
    sum_.push_back(sum);
    sum += piece.row * piece.length + piece.length * (piece.length - 1) / 2;
    at = piece.canonical + piece.length;
    row = piece.row + piece.length;
  }
  pieces_.back().canonical = kBeyond;  // piece_at stops here; before() clamps to its row
}

std::int64_t RankRows::before_sum(std::int64_t canonical) const {
  const std::size_t p = piece_at(canonical);
  const Piece& piece = pieces_[p];
  if (canonical >= piece.canonical) {
    const std::int64_t inside = canonical - piece.canonical;
    return sum_[p] + piece.row * inside + inside * (inside - 1) / 2;
  }
  // In the gap before piece p: `before` is constant there, and equals the piece's first row.
  if (p == 0) return 0;
  const Piece& previous = pieces_[p - 1];
  const std::int64_t end = previous.canonical + previous.length;
  return sum_[p - 1] + previous.row * previous.length + previous.length * (previous.length - 1) / 2 +
         piece.row * (canonical - end);
}

std::vector<Piece> pieces_of(const Plan& plan, std::int32_t ring_rank) {
  std::vector<Piece> result;
  for (const Piece& piece : plan.pieces)
    if (piece.ring_rank == ring_rank) result.push_back(piece);
  return result;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "exec/ordered_copies.hpp"

#include <algorithm>

namespace marble {
namespace {

bool meet(std::int64_t a, std::int64_t a_length, std::int64_t b, std::int64_t b_length) {
  return a < b + b_length && b < a + a_length;
}

}  // namespace

bool OrderedCopies::overlaps(const Transfer& recv) const {
  // The ranges of one peer ascend, so that this answers for nearly all of a long list.
  if (recv.row >= written_rows_[static_cast<std::size_t>(recv.buffer)]) return false;
  return std::ranges::any_of(recvs_, [&](const Transfer& other) {
    return other.buffer == recv.buffer && meet(other.row, other.rows, recv.row, recv.rows) &&
           meet(other.head, other.heads, recv.head, recv.heads);
  });
}

void OrderedCopies::add(const Transfer& recv, const Copy& copy) {
  if (overlaps(recv)) flush();
  recvs_.push_back(recv);
  copies_.push_back(copy);
  std::int64_t& written = written_rows_[static_cast<std::size_t>(recv.buffer)];
  written = std::max(written, recv.row + recv.rows);
}

void OrderedCopies::flush() {
  if (!copies_.empty()) backend_.copy(copies_);
  recvs_.clear();
  copies_.clear();
  std::ranges::fill(written_rows_, 0);
}

}  // namespace marble

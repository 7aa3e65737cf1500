// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the receives of an exchange leave to copy or add, as few calls of the backend as their order allows: sums into
// the same elements follow one another, everything else is copied at once.

#include "marble/backend.hpp"
#include "marble/rank_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace marble {

class OrderedCopies {
 public:
  OrderedCopies(Backend& backend, std::size_t num_buffers) : backend_(backend), written_rows_(num_buffers) {}

  /// `copy` writes what `recv` names.
  void add(const Transfer& recv, const Copy& copy);
  /// Makes the copies that were added and not made yet.
  void flush();

 private:
  /// True when a copy that has not been made yet writes some of the same elements.
  [[nodiscard]] bool overlaps(const Transfer& recv) const;

  Backend& backend_;
  std::vector<Transfer> recvs_;             // of the copies
  std::vector<Copy> copies_;                // not made yet
  std::vector<std::int64_t> written_rows_;  // by buffer: the copies write rows below this
};

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Room in the region for receives whose targets lie elsewhere: a ring, taken when an exchange begins and free again
// once the compute stream has copied the data to their targets.

#include "transport/nccl/device.hpp"

#include <cstdint>
#include <deque>
#include <optional>

namespace marble::nccl {

class Staging {
 public:
  explicit Staging(std::int64_t capacity) : capacity_(capacity) {}

  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

  /// An offset with room for `bytes` (256-byte aligned), or none. It belongs to exchange `number`.
  [[nodiscard]] std::optional<std::int64_t> take(std::int64_t bytes, Word number);
  /// What `number` took is free once the words say that wait `wait` has unstaged; 0: at once.
  void give_back(Word number, Word wait);
  /// Forgets what waits up to `unstaged` gave back.
  void reclaim(Word unstaged);
  /// The wait to look out for: room comes after it. None when what is in the way was not given back.
  [[nodiscard]] std::optional<Word> next_wait() const;

 private:
  struct Taken {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    Word number = 0;
    std::optional<Word> wait = {};
  };

  std::int64_t capacity_;
  std::deque<Taken> taken_;  // oldest first
};

}  // namespace marble::nccl

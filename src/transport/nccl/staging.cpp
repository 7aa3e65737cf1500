// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/staging.hpp"

namespace marble::nccl {

std::optional<std::int64_t> Staging::take(std::int64_t bytes, Word number) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::int64_t begin = 0, end = capacity_;
  if (!taken_.empty()) {
    // Used: from the oldest's begin to the newest's end, which may lie before it once the ring has wrapped.
    const std::int64_t oldest = taken_.front().begin, newest = taken_.back().end;
    const bool has_wrapped = newest <= oldest;
    begin = newest;
    end = has_wrapped ? oldest : capacity_;
    if (!has_wrapped && begin + rounded > end) {
      begin = 0;
      end = oldest;
    }
  }
  if (begin + rounded > end) return std::nullopt;
  taken_.push_back({begin, begin + rounded, number});
  return begin;
}

void Staging::give_back(Word number, Word wait) {
  for (Taken& entry : taken_)
    if (entry.number == number) entry.wait = wait;
}

void Staging::reclaim(Word unstaged) {
  while (!taken_.empty() && taken_.front().wait && *taken_.front().wait <= unstaged) taken_.pop_front();
}

std::optional<Word> Staging::next_wait() const {
  return taken_.empty() ? std::nullopt : taken_.front().wait;
}

}  // namespace marble::nccl

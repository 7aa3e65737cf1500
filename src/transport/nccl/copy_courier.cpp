// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/copy_courier.hpp"

#include <array>

namespace marble::nccl {

void CopyCourier::begin_round() {
  begun_ = load(words_.begun());
  is_blocked_.assign(is_blocked_.size(), 0);
}

Progress CopyCourier::advance(Exchange& exchange) {
  if (exchange.number > begun_) return Progress::stop;
  Progress progress = Progress::all;
  for (Outgoing& parcel : exchange.sends) {
    if (parcel.place == Place::host || parcel.is_started) continue;
    char& is_blocked = is_blocked_[static_cast<std::size_t>(parcel.peer)];
    const bool is_ready = is_blocked == 0 && parcel.post && load(words_.credit(parcel.peer, rank_)) >= parcel.sequence;
    if (is_ready) {
      start(parcel);
      parcel.is_started = true;
    } else {
      is_blocked = 1;
      progress = Progress::some;
    }
  }
  return progress;
}

void CopyCourier::start(const Outgoing& parcel) {
  std::byte* const region = regions_[static_cast<std::size_t>(parcel.peer)];
  const std::vector<std::int64_t>& offsets = parcel.post->offsets;
  const auto source = [&](std::size_t i) { return static_cast<const std::byte*>(parcel.messages[i].data); };
  for (std::size_t i = 0; i < parcel.messages.size();) {
    // Messages that lie end to end on both sides are one copy.
    std::int64_t bytes = parcel.messages[i].bytes;
    std::size_t next = i + 1;
    for (; next < parcel.messages.size(); ++next) {
      if (source(next) != source(i) + bytes || offsets[next] != offsets[i] + bytes) break;
      bytes += parcel.messages[next].bytes;
    }
    if (bytes > 0) device_.copy(Queue::side, region + offsets[i], source(i), bytes);
    i = next;
  }
  const std::array ops = {WordOp{WordOp::Kind::write, words_.arrived(parcel.peer, rank_), parcel.sequence},
                          WordOp{WordOp::Kind::write, words_.sent(parcel.peer), parcel.sequence}};
  device_.enqueue(Queue::side, ops);
}

}  // namespace marble::nccl

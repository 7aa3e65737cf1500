// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/copy_courier.hpp"

#include <array>

namespace marble::nccl {

std::int32_t CopyCourier::advance(Exchange& exchange) {
  std::int32_t awaited = kAll;
  for (Outgoing& parcel : exchange.sends) {
    if (parcel.place == Place::host || parcel.is_started) continue;
    char& is_blocked = is_blocked_[static_cast<std::size_t>(parcel.peer)];
    if (is_blocked == 0 && parcel.post) {
      start(parcel, *exchange.begun);
      parcel.is_started = true;
    } else {
      is_blocked = 1;
      if (awaited == kAll) awaited = parcel.peer;
    }
  }
  return awaited;
}

void CopyCourier::start(const Outgoing& parcel, const Mark& begun) {
  const Queue queue = side_queue(parcel.peer);
  device_.follow(queue, begun);
  device_.enqueue(queue, std::array{WordOp{WordOp::Kind::wait, words_.credit(parcel.peer, rank_), parcel.sequence}});
  std::byte* const region = regions_[static_cast<std::size_t>(parcel.peer)];
  const std::vector<std::int64_t>& offsets = parcel.post->offsets;
  const auto source = [&](std::size_t i) { return static_cast<const std::byte*>(parcel.messages[i].data); };
  for (std::size_t i = 0; i < parcel.messages.size();) {
    // Messages that lie end to end on both sides are one copy, unless another allocation begins between them.
    std::int64_t bytes = parcel.messages[i].bytes;
    std::size_t next = i + 1;
    for (; next < parcel.messages.size(); ++next) {
      if (source(next) != source(i) + bytes || offsets[next] != offsets[i] + bytes) break;
      if (!device_.is_one_allocation(source(i), bytes + parcel.messages[next].bytes)) break;
      bytes += parcel.messages[next].bytes;
    }
    if (bytes > 0) device_.copy(queue, region + offsets[i], source(i), bytes);
    i = next;
  }
  const std::array ops = {WordOp{WordOp::Kind::write, words_.arrived(parcel.peer, rank_), parcel.sequence},
                          WordOp{WordOp::Kind::write, words_.sent(parcel.peer), parcel.sequence}};
  device_.enqueue(queue, ops);
}

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/copy_courier.hpp"

#include <array>

namespace marble::nccl {

std::vector<std::pair<Queue, Queue>> CopyCourier::independent_queues() const {
  std::vector<std::pair<Queue, Queue>> pairs;
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    pairs.emplace_back(kCompute, side_queue(peer));
    pairs.emplace_back(side_queue(peer), kCompute);
  }
  return pairs;
}

void CopyCourier::enqueue_credits(const Exchange& exchange) {
  std::vector<WordOp> credits;
  for (const Incoming& parcel : exchange.recvs)
    if (is_device(parcel)) credits.push_back({WordOp::Kind::write, words_.credit(parcel.peer), parcel.sequence});
  if (!credits.empty()) device_.enqueue(kCompute, credits);
}

void CopyCourier::enqueue_wait(const Exchange& exchange, std::vector<WordOp>& ops) {
  for (const Incoming& parcel : exchange.recvs)
    if (is_device(parcel)) ops.push_back({WordOp::Kind::wait, words_.arrived(parcel.peer), parcel.sequence});
  for (const Outgoing& parcel : exchange.sends)
    if (is_device(parcel)) ops.push_back({WordOp::Kind::wait, words_.sent(parcel.peer), parcel.sequence});
}

std::int32_t CopyCourier::advance(Exchange& exchange) {
  std::int32_t awaited = kAll;
  for (Outgoing& parcel : exchange.sends) {
    if (!is_device(parcel) || parcel.is_started) continue;
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

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/sendrecv_courier.hpp"

namespace marble::nccl {
namespace {

template <typename P>
std::vector<Message> device_messages(const std::vector<P>& parcels) {
  std::vector<Message> messages;
  for (const P& parcel : parcels) {
    if (!is_device(parcel)) continue;
    for (const Message& message : parcel.messages)
      if (message.bytes > 0) messages.push_back(message);
  }
  return messages;
}

}  // namespace

void SendRecvCourier::enqueue_wait(const Exchange& exchange, std::vector<WordOp>& ops) {
  device_.enqueue(kCompute, ops);
  device_.follow(kCompute, *exchange.done);
  ops.clear();
}

std::int32_t SendRecvCourier::advance(Exchange& exchange) {
  if (blocked_by_ == kAll) blocked_by_ = late_receiver(exchange);
  if (blocked_by_ == kAll) blocked_by_ = late_sender(exchange);
  if (blocked_by_ != kAll) return blocked_by_;
  device_.follow(kSide, *exchange.begun);
  if (!communicator_->send_recv(kSide, device_messages(exchange.sends), device_messages(exchange.recvs)))
    return rank_;  // the transport has failed
  exchange.done = device_.mark(kSide);
  return kAll;
}

}  // namespace marble::nccl

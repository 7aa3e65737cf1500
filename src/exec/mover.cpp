// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "exec/mover.hpp"

#include "exec/pass.hpp"

#include "marble/error.hpp"

namespace marble {
namespace {

std::span<const Transfer> transfers(const RankPlan& plan, const SectionRange& range) {
  return plan.transfers().subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

TensorView block(const TensorView& buffer, const Transfer& transfer) {
  return buffer.block(transfer.row, transfer.rows, transfer.head, transfer.heads);
}

/// Where a message can arrive: a transport that reserves memory writes nowhere else.
bool takes_arrivals(const RankPlan& plan, std::int32_t buffer, bool reserves) {
  return !reserves || is_workspace(plan, buffer);
}

}  // namespace

std::int64_t staging_bytes(const RankPlan& plan, DType dtype, std::int32_t exchange, bool reserves) {
  const Exchange& entry = plan.exchanges()[static_cast<std::size_t>(exchange)];
  std::int64_t bytes = 0;
  const auto add = [&](const Transfer& transfer, bool always) {
    const TensorView view = block(buffer_view(plan, transfer.buffer, dtype, nullptr), transfer);
    // A tensor of the caller may have any strides, so its transfers may need packing.
    if (always || is_callers(transfer.buffer) || !view.contiguous()) bytes += workspace_align(view.bytes());
  };
  std::vector<const Transfer*> own_sends;
  for (const Transfer& send : transfers(plan, entry.sends)) {
    if (send.peer == plan.header().rank)
      own_sends.push_back(&send);
    else
      add(send, false);
  }
  std::size_t own = 0;
  for (const Transfer& recv : transfers(plan, entry.recvs)) {
    if (recv.peer != plan.header().rank)
      add(recv, recv.add != 0 || !takes_arrivals(plan, recv.buffer, reserves));
    else if (own < own_sends.size() && own_sends[own++] != nullptr && recv.add != 0)
      add(*own_sends[own - 1], false);
  }
  return bytes;
}

TensorView Mover::view(const Transfer& transfer) const {
  return block(buffers_[static_cast<std::size_t>(transfer.buffer)], transfer);
}

std::byte* Mover::take_staging(std::int64_t bytes) {
  std::byte* const place = staging_ + staged_;
  staged_ += workspace_align(bytes);
  return place;
}

void* Mover::dense(const TensorView& source) {
  if (source.contiguous()) return source.data;
  void* const data = take_staging(source.bytes());
  backend_.pack(source, data);
  return data;
}

void Mover::place_send(const Transfer& transfer) {
  const TensorView source = view(transfer);
  if (transfer.peer == plan_.header().rank)
    own_sends_.push_back(source);
  else
    send_messages_.push_back({transfer.peer, dense(source), source.bytes()});
}

void Mover::place_recv(const Transfer& transfer) {
  const TensorView target = view(transfer);
  if (transfer.peer == plan_.header().rank) {
    ensure(own_recvs_ < own_sends_.size(), "rank plan receives more from its own rank than it sends");
    const TensorView source = own_sends_[own_recvs_++];
    if (transfer.add == 0) own_copies_.emplace_back(source, target);
    arrivals_.push_back(transfer.add == 0 ? target.data : dense(source));
    return;
  }
  const bool in_place =
      target.contiguous() && transfer.add == 0 && takes_arrivals(plan_, transfer.buffer, transport_.reserves());
  arrivals_.push_back(in_place ? target.data : take_staging(target.bytes()));
  recv_messages_.push_back({transfer.peer, arrivals_.back(), target.bytes()});
}

void Mover::begin(std::int32_t exchange, std::string_view label) {
  ensure(recvs_.empty() && !ticket_, "{} begins before the exchange before it was waited for", label);
  if (exchange < 0) return;
  const Exchange& entry = plan_.exchanges()[static_cast<std::size_t>(exchange)];
  arrivals_.clear();
  own_sends_.clear();
  own_copies_.clear();
  send_messages_.clear();
  recv_messages_.clear();
  own_recvs_ = 0;
  staged_ = 0;
  recvs_ = transfers(plan_, entry.recvs);
  for (const Transfer& send : transfers(plan_, entry.sends)) place_send(send);
  for (const Transfer& recv : recvs_) place_recv(recv);
  if (!send_messages_.empty() || !recv_messages_.empty())
    ticket_ = transport_.begin(send_messages_, recv_messages_, label);
  for (const auto& [source, target] : own_copies_) backend_.cast(source, target);
}

void Mover::wait() {
  if (ticket_) {
    transport_.wait(*ticket_);
    ticket_.reset();
  }
  for (std::size_t i = 0; i < recvs_.size(); ++i) {
    const TensorView target = view(recvs_[i]);
    if (recvs_[i].add != 0 || arrivals_[i] != target.data) backend_.unpack(arrivals_[i], target, recvs_[i].add != 0);
  }
  recvs_ = {};
}

}  // namespace marble

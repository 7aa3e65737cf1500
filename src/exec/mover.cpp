// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "exec/mover.hpp"

#include "exec/ordered_copies.hpp"
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

TensorView dense_like(const TensorView& view, void* data) {
  return dense_view(data, view.dtype, view.rows, view.heads, view.dim);
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
  for (const Transfer& send : transfers(plan, entry.sends))
    if (send.peer != plan.header().rank) add(send, false);
  for (const Transfer& recv : transfers(plan, entry.recvs))
    if (recv.peer != plan.header().rank) add(recv, recv.add != 0 || !takes_arrivals(plan, recv.buffer, reserves));
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

void Mover::place_send(const Transfer& transfer) {
  const TensorView source = view(transfer);
  if (transfer.peer == plan_.header().rank) {
    own_sends_.push_back(source);
    return;
  }
  void* data = source.data;
  if (!source.contiguous()) {
    data = take_staging(source.bytes());
    packs_.push_back({source, dense_like(source, data)});
  }
  send_messages_.push_back({transfer.peer, data, source.bytes()});
}

void Mover::place_recv(const Transfer& transfer) {
  const TensorView target = view(transfer);
  if (transfer.peer == plan_.header().rank) {
    ensure(own_recvs_ < own_sends_.size(), "rank plan receives more from its own rank than it sends");
    const TensorView& source = own_sends_[own_recvs_++];
    if (transfer.add == 0)
      own_copies_.push_back({source, target});
    else
      arrivals_.push_back({&transfer, source});
    return;
  }
  const bool in_place =
      target.contiguous() && transfer.add == 0 && takes_arrivals(plan_, transfer.buffer, transport_.reserves());
  void* const data = in_place ? target.data : take_staging(target.bytes());
  if (!in_place) arrivals_.push_back({&transfer, dense_like(target, data)});
  recv_messages_.push_back({transfer.peer, data, target.bytes()});
}

void Mover::begin(std::int32_t exchange, std::string_view label) {
  ensure(!is_under_way_, "{} begins before the exchange before it was waited for", label);
  if (exchange < 0) return;
  const Exchange& entry = plan_.exchanges()[static_cast<std::size_t>(exchange)];
  packs_.clear();
  own_sends_.clear();
  own_copies_.clear();
  arrivals_.clear();
  send_messages_.clear();
  recv_messages_.clear();
  own_recvs_ = 0;
  staged_ = 0;
  is_under_way_ = true;
  for (const Transfer& send : transfers(plan_, entry.sends)) place_send(send);
  for (const Transfer& recv : transfers(plan_, entry.recvs)) place_recv(recv);
  if (!packs_.empty()) backend_.copy(packs_);
  if (!send_messages_.empty() || !recv_messages_.empty())
    ticket_ = transport_.begin(send_messages_, recv_messages_, label);
  if (!own_copies_.empty()) backend_.copy(own_copies_);
}

void Mover::wait() {
  if (!is_under_way_) return;
  if (ticket_) {
    transport_.wait(*ticket_);
    ticket_.reset();
  }
  OrderedCopies copies(backend_, buffers_.size());
  for (const auto& [recv, source] : arrivals_) copies.add(*recv, {source, view(*recv), recv->add != 0});
  copies.flush();
  is_under_way_ = false;
}

}  // namespace marble

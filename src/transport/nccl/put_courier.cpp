// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/put_courier.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

namespace marble::nccl {
namespace {

/// NCCL's proxies have lost puts where more than 256 were under way.
constexpr std::size_t kMostPuts = 128;

/// Puts that lie end to end on both sides are one.
void add(std::vector<Put>& puts, const Put& put) {
  if (!puts.empty()) {
    Put& last = puts.back();
    if (last.peer == put.peer && last.target == put.target && last.source + last.bytes == put.source &&
        last.offset + last.bytes == put.offset) {
      last.bytes += put.bytes;
      return;
    }
  }
  puts.push_back(put);
}

}  // namespace

PutCourier::PutCourier(Device& device, const Words& words, std::int32_t rank, std::int32_t num_ranks,
                       std::int64_t outbox_bytes)
    : device_(device), words_(words), rank_(rank), num_ranks_(num_ranks), half_bytes_(outbox_bytes / 2) {}

PutCourier::~PutCourier() {
  try {
    if (arrival_window_) device_.synchronize(kReleases);
  } catch (const BackendError&) {  // of a lost device
  }
  for (std::unique_ptr<Window>* const window : {&region_, &outbox_, &arrival_window_, &credit_window_}) window->reset();
  // Each end takes NCCL a second, so they end together.
  const std::jthread other([this] { credits_.reset(); });
  data_.reset();
}

void PutCourier::set_communicators(std::unique_ptr<Communicator> data, std::unique_ptr<Communicator> credits) {
  data_ = std::move(data);
  credits_ = std::move(credits);
}

void PutCourier::allocate() {
  outbox_ = data_->allocate_window(2 * half_bytes_);
  arrival_window_ = data_->allocate_window(WindowWords::bytes(num_ranks_));
  credit_window_ = credits_->allocate_window(WindowWords::bytes(num_ranks_));
  arrivals_.place(*arrival_window_, rank_, num_ranks_);
  credit_words_.place(*credit_window_, rank_, num_ranks_);
  std::vector<WordOp> ops;
  for (const WindowWords* words : {&arrivals_, &credit_words_})
    for (std::int32_t peer = 0; peer < num_ranks_; ++peer)
      for (Word* const word : {words->from(peer), words->to(peer)}) ops.push_back({WordOp::Kind::write, word, 0});
  device_.enqueue(kReleases, ops);
  device_.synchronize(kReleases);
}

void PutCourier::open(Deadline deadline) {
  data_->open(*outbox_, deadline);
  data_->open(*arrival_window_, deadline);
  credits_->open(*credit_window_, deadline);
}

void PutCourier::try_puts() {
  const std::int32_t next = (rank_ + 1) % num_ranks_;
  if (data_->put(kData, std::array{arrivals_.put(next)}) &&
      credits_->put(kCredits, std::array{credit_words_.put(next)}))
    return;
  throw BackendError("the transport failed at its first puts");
}

std::byte* PutCourier::allocate_region(std::int64_t bytes) {
  region_ = data_->allocate_window(bytes);
  return region_->data();
}

std::vector<std::pair<Queue, Queue>> PutCourier::independent_queues() const {
  return {{kCompute, kData}, {kCompute, kCredits}, {kCompute, kReleases}, {kCompute, kOutbox},
          {kData, kCompute}, {kData, kCredits},    {kData, kReleases}};
}

/// Own words follow those in the windows: they say on the host how far the stream is.
void PutCourier::enqueue_wait(const Exchange& exchange, std::vector<WordOp>& ops) {
  for (const Incoming& parcel : exchange.recvs) {
    if (!is_device(parcel)) continue;
    ops.push_back({WordOp::Kind::wait, arrivals_.from(parcel.peer), parcel.sequence});
    ops.push_back({WordOp::Kind::write, words_.arrived(parcel.peer), parcel.sequence});
  }
  for (const Outgoing& parcel : exchange.sends)
    if (is_device(parcel)) ops.push_back({WordOp::Kind::wait, words_.sent(parcel.peer), parcel.sequence});
}

std::int32_t PutCourier::advance(Exchange& exchange) {
  if (!give_credits(exchange)) return rank_;  // the transport has failed
  if (!has_device_sends(exchange)) return kAll;
  if (blocked_by_ == kAll) blocked_by_ = late_receiver(exchange);
  if (blocked_by_ != kAll) return blocked_by_;
  return start(exchange) ? kAll : rank_;
}

bool PutCourier::give_credits(Exchange& exchange) {
  if (exchange.is_credited) return true;
  exchange.is_credited = true;
  std::vector<WordOp> ops;
  std::vector<Put> puts;
  for (const Incoming& parcel : exchange.recvs) {
    if (!is_device(parcel)) continue;
    ops.push_back({WordOp::Kind::write, credit_words_.to(parcel.peer), parcel.sequence});
    puts.push_back(credit_words_.put(parcel.peer));
  }
  if (puts.empty()) return true;
  device_.follow(kCredits, *exchange.begun);
  device_.enqueue(kCredits, ops);
  return credits_->put(kCredits, puts);
}

bool PutCourier::start(const Exchange& exchange) {
  device_.follow(kData, *exchange.begun);
  device_.follow(kOutbox, *exchange.begun);
  std::vector<WordOp> credits, arrivals, sent;
  for (const Outgoing& parcel : exchange.sends) {
    if (!is_device(parcel)) continue;
    credits.push_back({WordOp::Kind::wait, credit_words_.from(parcel.peer), parcel.sequence});
    arrivals.push_back({WordOp::Kind::write, arrivals_.to(parcel.peer), parcel.sequence});
    sent.push_back({WordOp::Kind::write, words_.sent(parcel.peer), parcel.sequence});
  }
  device_.enqueue(kData, credits);
  device_.enqueue(kData, arrivals);
  std::vector<Put> puts;
  for (const Outgoing& parcel : exchange.sends)
    if (is_device(parcel) && !put_data(parcel, puts)) return false;
  for (const Outgoing& parcel : exchange.sends)
    if (is_device(parcel)) puts.push_back(arrivals_.put(parcel.peer));
  if (!flush(puts)) return false;
  device_.enqueue(kData, sent);
  return true;
}

bool PutCourier::put_data(const Outgoing& parcel, std::vector<Put>& puts) {
  for (std::size_t i = 0; i < parcel.messages.size(); ++i) {
    const Message& message = parcel.messages[i];
    if (message.bytes == 0) continue;
    const Put put{static_cast<const std::byte*>(message.data), message.bytes, parcel.peer, region_.get(),
                  parcel.post->offsets[i]};
    if (region_->contains(put.source, put.bytes)) {
      add(puts, put);
    } else if (!put_through_outbox(put, puts)) {
      return false;
    }
  }
  return true;
}

bool PutCourier::put_through_outbox(Put put, std::vector<Put>& puts) {
  while (put.bytes > 0) {
    if (half_used_ == half_bytes_ && !flush(puts)) return false;
    if (half_used_ == 0 && half_is_free_[half_]) device_.follow(kOutbox, *half_is_free_[half_]);
    Put part = put;
    part.bytes = std::min(put.bytes, half_bytes_ - half_used_);
    std::byte* const place = outbox_->data() + static_cast<std::int64_t>(half_) * half_bytes_ + half_used_;
    device_.copy(kOutbox, place, put.source, part.bytes);
    part.source = place;
    add(puts, part);
    half_used_ += part.bytes;
    put.source += part.bytes;
    put.offset += part.bytes;
    put.bytes -= part.bytes;
  }
  return true;
}

/// While the puts from one half of the outbox are on their way, the other is filled.
bool PutCourier::flush(std::vector<Put>& puts) {
  if (half_used_ > 0) device_.follow(kData, *device_.mark(kOutbox));
  for (std::size_t at = 0; at < puts.size(); at += kMostPuts)
    if (!data_->put(kData, std::span(puts).subspan(at, std::min(kMostPuts, puts.size() - at)))) return false;
  puts.clear();
  if (std::exchange(half_used_, 0) == 0) return true;
  half_is_free_[half_] = device_.mark(kData);
  half_ = 1 - half_;
  return true;
}

/// Through a queue that never waits.
void PutCourier::release(const WindowWords& words) noexcept {
  std::vector<WordOp> ops;
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer)
    ops.push_back({WordOp::Kind::write, words.from(peer), kReleased});
  try {
    device_.enqueue(kReleases, ops);
  } catch (const BackendError&) {  // of a lost device, whose queues do not wait either
  }
}

void PutCourier::release_compute() noexcept {
  words_.release_compute();
  release(arrivals_);
}

void PutCourier::release_side() noexcept {
  release(credit_words_);
}

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/stream_transport.hpp"

#include "transport/nccl/wire.hpp"
#include "transport/report.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

namespace marble::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::vector<std::int64_t> sizes_of(std::span<const Message> messages) {
  std::vector<std::int64_t> sizes;
  for (const Message& message : messages) sizes.push_back(message.bytes);
  return sizes;
}

std::vector<Message> messages_of(std::span<const Message> messages, std::int32_t peer) {
  std::vector<Message> own;
  std::copy_if(messages.begin(), messages.end(), std::back_inserter(own),
               [&](const Message& message) { return message.peer == peer; });
  return own;
}

}  // namespace

Place StreamTransport::place_of(std::span<const Message> messages, std::string_view label) const {
  std::optional<Place> place;
  for (const Message& message : messages) {
    if (message.bytes == 0) continue;
    const Place own = device_.is_device_memory(message.data) ? Place::device : Place::host;
    require(!place || *place == own, "messages between ranks {} and {} in '{}' lie partly in host memory", rank_,
            message.peer, label);
    place = own;
  }
  return place.value_or(Place::device);
}

template <typename P>
std::vector<P> StreamTransport::parcels(std::span<const Message> messages, std::vector<Word>& counts,
                                        std::string_view label) const {
  std::vector<P> result;
  std::vector<std::size_t> slot(static_cast<std::size_t>(num_ranks_));  // 1 + index into result
  for (const Message& message : messages) {
    if (message.peer == rank_) continue;
    const auto peer = static_cast<std::size_t>(message.peer);
    if (slot[peer] == 0) {
      P& parcel = result.emplace_back();
      parcel.peer = message.peer;
      parcel.sequence = ++counts[peer];
      slot[peer] = result.size();
    }
    result[slot[peer] - 1].messages.push_back(message);
  }
  for (P& parcel : result) parcel.place = place_of(parcel.messages, label);
  return result;
}

/// Runs `fn`; when the device refuses, the other ranks must not wait for this one.
template <typename Fn>
void StreamTransport::poisoning(Fn&& fn) {
  try {
    fn();
  } catch (const BackendError& error) {
    engine_->fail(error.what());
    throw;
  }
}

std::int64_t StreamTransport::begin(std::span<const Message> sends, std::span<const Message> recvs,
                                    std::string_view label) {
  failure_.check();
  check_messages(sends, num_ranks_, label);
  check_messages(recvs, num_ranks_, label);
  device_.select();
  require(!device_.is_capturing(), "'{}' begins while its stream is captured into a graph, which exchanges cannot be",
          label);
  const auto exchange = std::make_shared<Exchange>();
  exchange->label = label;
  std::vector<Word> sent = num_sent_, expected = num_expected_;
  exchange->sends = parcels<Outgoing>(sends, sent, label);
  exchange->recvs = parcels<Incoming>(recvs, expected, label);
  exchange->number = has_device_parcels(*exchange) ? num_exchanges_ + 1 : 0;
  place_recvs(*exchange);
  copy_own(messages_of(sends, rank_), messages_of(recvs, rank_), label);
  for (Outgoing& parcel : exchange->sends)
    if (!is_device(parcel))
      for (const Message& message : parcel.messages)
        parcel.bytes.append(static_cast<const char*>(message.data), static_cast<std::size_t>(message.bytes));
  num_sent_ = std::move(sent);
  num_expected_ = std::move(expected);
  if (exchange->number > 0) poisoning([&] { enqueue_begin(*exchange); });
  if (!exchange->sends.empty() || !exchange->recvs.empty()) engine_->begin(exchange);
  in_flight_.emplace(next_ticket_, exchange);
  return next_ticket_++;
}

/// Where in this rank's region each device message arrives.
void StreamTransport::place_recvs(Exchange& exchange) {
  if (!reserves()) return;
  const auto* const reserved = static_cast<const std::byte*>(this->reserved());
  const auto is_reserved = [&](const Message& message) {
    const auto* const data = static_cast<const std::byte*>(message.data);
    return reserved != nullptr && data >= reserved && data + message.bytes <= reserved + reserved_bytes_;
  };
  for (Incoming& parcel : exchange.recvs) {
    if (!is_device(parcel)) continue;
    std::int64_t staged = 0;
    for (const Message& message : parcel.messages)
      if (!is_reserved(message)) staged += message.bytes;
    std::int64_t offset = staged > 0 ? stage(staged, exchange) : 0;
    for (const Message& message : parcel.messages) {
      if (is_reserved(message)) {
        parcel.offsets.push_back(static_cast<const std::byte*>(message.data) - region_);
        continue;
      }
      parcel.offsets.push_back(offset);
      if (message.bytes > 0) exchange.staged.push_back({message, region_ + offset});
      offset += message.bytes;
    }
  }
}

std::int64_t StreamTransport::stage(std::int64_t bytes, const Exchange& exchange) {
  constexpr std::chrono::microseconds kPause{50};
  while (true) {
    staging_.reclaim(load(words_.unstaged()));
    if (const auto offset = staging_.take(bytes, exchange.number)) return *offset;
    if (bytes > staging_.capacity() || !staging_.next_wait()) {
      staging_.give_back(exchange.number, 0);
      throw InvalidArgument(fmt::format(
          "'{}' receives {} bytes outside reserved memory, and of {} bytes of staging not enough are free; reserve "
          "memory, or wait for exchanges begun before",
          exchange.label, bytes, staging_.capacity()));
    }
    std::this_thread::sleep_for(kPause);
    failure_.check();
  }
}

void StreamTransport::copy_own(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) {
  try {
    check_sizes(rank_, rank_, label, sizes_of(recvs), sizes_of(sends));
  } catch (const TransportError& error) {
    engine_->fail(error.what());
    failure_.raise();
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].bytes == 0) continue;
    if (place_of(sends.subspan(i, 1), label) == Place::host && place_of(recvs.subspan(i, 1), label) == Place::host)
      std::memcpy(recvs[i].data, sends[i].data, static_cast<std::size_t>(sends[i].bytes));
    else
      device_.copy(kCompute, recvs[i].data, sends[i].data, sends[i].bytes);
  }
}

void StreamTransport::enqueue_begin(Exchange& exchange) {
  num_exchanges_ = exchange.number;
  exchange.begun = device_.mark(kCompute);
  courier_->enqueue_credits(exchange);
}

void StreamTransport::wait(std::int64_t ticket) {
  failure_.check();
  const auto found = in_flight_.find(ticket);
  require(found != in_flight_.end(), "rank {}: ticket {} is not in flight", rank_, ticket);
  const std::shared_ptr<Exchange> exchange = std::move(found->second);
  in_flight_.erase(found);
  device_.select();
  if (exchange->number > 0) poisoning([&] { enqueue_wait(exchange); });
  finish_host(*exchange);
  for (const Incoming& parcel : exchange->recvs)
    for (const Message& message : parcel.messages) bytes_received_ += message.bytes;
}

void StreamTransport::enqueue_wait(const std::shared_ptr<Exchange>& exchange) {
  // The compute stream must wait for nothing that this process has yet to ask for: a call that waits for the device on
  // this thread would hold that up.
  if (courier_->asks_for(*exchange)) engine_->wait_started(*exchange);
  const Word number = num_waits_ + 1;
  {
    const std::scoped_lock lock(mutex_);
    waits_.push_back({number, exchange});
    num_waits_ = number;
  }
  try {
    std::vector<WordOp> ops = {{WordOp::Kind::write, words_.wait_reached(), number}};
    courier_->enqueue_wait(*exchange, ops);
    ops.push_back({WordOp::Kind::write, words_.wait_passed(), number});
    device_.enqueue(kCompute, ops);
  } catch (const BackendError&) {  // the stream will never pass it
    const std::scoped_lock lock(mutex_);
    waits_.pop_back();
    --num_waits_;
    throw;
  }
  if (exchange->staged.empty()) return;
  for (const Staged& staged : exchange->staged)
    device_.copy(kCompute, staged.target.data, staged.source, staged.target.bytes);
  device_.enqueue(kCompute, std::array{WordOp{WordOp::Kind::write, words_.unstaged(), number}});
  staging_.give_back(exchange->number, number);
}

void StreamTransport::finish_host(Exchange& exchange) {
  engine_->wait_host(exchange);
  for (const Incoming& parcel : exchange.recvs) {
    if (is_device(parcel)) continue;
    const char* source = parcel.bytes->data();
    for (const Message& message : parcel.messages) {
      if (message.bytes > 0) std::memcpy(message.data, source, static_cast<std::size_t>(message.bytes));
      source += message.bytes;
    }
  }
}

void StreamTransport::agree(std::uint64_t value, std::string_view what) {
  failure_.check();
  std::vector<std::uint64_t> values;
  for (const std::string& bytes :
       engine_->all_gather(Writer().value(value).take(), fmt::format("agreement on {}", what)))
    values.push_back(Reader(bytes).value<std::uint64_t>());
  check_agreement(values, what);
}

void StreamTransport::watch() {
  constexpr milliseconds kLongest{50};
  const milliseconds pause = std::clamp(time_limit_ / 20, milliseconds(1), kLongest);
  constexpr std::chrono::seconds kHearingLimit{1};
  Word stuck = 0;
  auto since = steady_clock::now();
  std::optional<Deadline> heard;
  device_.select();
  std::unique_lock lock(mutex_);
  while (!stops_) {
    watchdog_woken_.wait_for(lock, failure_.happened() ? milliseconds(1) : pause, [&] { return stops_; });
    const Word reached = load(words_.wait_reached()), passed = load(words_.wait_passed());
    while (!waits_.empty() && waits_.front().number <= passed) waits_.pop_front();
    if (failure_.happened()) {
      // Again and again: smaller values may still be written over the releasing ones. Side queues then write to peers
      // without their credit, which is harmless once those know that their results are void.
      if (courier_) courier_->release_compute();
      if (!heard) heard = steady_clock::now() + kHearingLimit;
      if (engine_->is_known() || steady_clock::now() > *heard)
        if (courier_) courier_->release_side();
      continue;
    }
    const auto now = steady_clock::now();
    if (reached <= passed || reached != stuck) {
      stuck = reached > passed ? reached : 0;
      since = now;
    } else if (now - since >= time_limit_ && !waits_.empty()) {
      const std::string reason = describe_stuck(waits_.front());
      lock.unlock();
      engine_->fail(reason);
      lock.lock();
    }
  }
}

std::string StreamTransport::describe_stuck(const Wait& wait) const {
  for (const Incoming& parcel : wait.exchange->recvs)
    if (is_device(parcel) && load(words_.arrived(parcel.peer)) < parcel.sequence)
      return describe_timeout(rank_, time_limit_, parcel.sizes(), "from", parcel.peer, wait.exchange->label);
  for (const Outgoing& parcel : wait.exchange->sends)
    if (is_device(parcel) && load(words_.sent(parcel.peer)) < parcel.sequence)
      return describe_timeout(rank_, time_limit_, parcel.sizes(), "to", parcel.peer, wait.exchange->label);
  return fmt::format("rank {} waited {:.1f} s in '{}' for its own device", rank_,
                     std::chrono::duration<double>(time_limit_).count(), wait.exchange->label);
}

void StreamTransport::on_failure() {
  const std::scoped_lock lock(mutex_);
  if (courier_) courier_->release_compute();
}

}  // namespace marble::nccl

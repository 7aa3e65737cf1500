// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/staged.hpp"

#include "transport/report.hpp"

#include "marble/error.hpp"

#include <utility>

namespace marble {

std::unique_ptr<std::byte[]> make_bytes(std::int64_t num_bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(num_bytes));
}

namespace {

/// Calls fn(message, its place in the parcel of its peer) for each message with bytes.
template <typename Fn>
void for_each_place(std::span<const Message> messages, const std::vector<Parcel>& parcels, Fn&& fn) {
  std::map<std::int32_t, std::byte*> place;
  for (const Parcel& parcel : parcels) place[parcel.peer] = parcel.bytes.get();
  for (const Message& message : messages) {
    std::byte*& at = place.at(message.peer);
    if (message.bytes > 0) fn(message, at);
    at += message.bytes;
  }
}

}  // namespace

StagedTransport::StagedTransport(std::int32_t rank, std::int32_t num_ranks, const TransportOptions& options)
    : rank_(rank),
      num_ranks_(num_ranks),
      time_limit_(options.time_limit),
      memory_(options.memory),
      parcels_sent_(static_cast<std::size_t>(num_ranks)),
      parcels_expected_(static_cast<std::size_t>(num_ranks)) {
  require(time_limit_.count() > 0, "time limit {} ms is not positive", time_limit_.count());
}

void StagedTransport::set_memory_access(MemoryAccess memory) {
  require(in_flight_.empty(), "memory access changes with {} exchanges in flight", in_flight_.size());
  memory_ = std::move(memory);
}

void StagedTransport::check() {
  if (!failure_.empty())
    throw TransportError(fmt::format("rank {}: this transport failed before: {}", rank_, failure_));
}

/// Runs `fn` on a healthy transport; a TransportError that leaves it poisons this one.
template <typename Fn>
auto StagedTransport::poisoning(Fn&& fn) {
  check();
  try {
    return fn();
  } catch (const TransportError& error) {
    failure_ = error.what();
    on_failure(failure_);
    throw;
  }
}

void StagedTransport::fail(std::string_view reason) {
  if (!failure_.empty()) return;
  failure_ = reason;
  on_failure(failure_);
}

std::vector<Parcel> StagedTransport::parcels(std::span<const Message> messages,
                                             std::vector<std::int64_t>& counts) const {
  std::vector<Parcel> result;
  std::vector<std::size_t> slot(static_cast<std::size_t>(num_ranks_));  // 1 + index into result
  for (const Message& message : messages) {
    const auto peer = static_cast<std::size_t>(message.peer);
    if (slot[peer] == 0) {
      result.push_back({.peer = message.peer, .sequence = counts[peer]++});
      slot[peer] = result.size();
    }
    Parcel& parcel = result[slot[peer] - 1];
    parcel.sizes.push_back(message.bytes);
    parcel.num_bytes += message.bytes;
  }
  return result;
}

std::int64_t StagedTransport::start_exchange(std::span<const Message> sends, std::span<const Message> recvs,
                                             std::string_view label, const MemoryAccess& memory) {
  check_messages(sends, num_ranks_, label);
  check_messages(recvs, num_ranks_, label);
  // Counts move only once the memory has been read, so that a read that throws leaves nothing started.
  auto sent = parcels_sent_;
  std::vector<Parcel> outgoing = parcels(sends, sent);
  for (Parcel& parcel : outgoing) parcel.bytes = make_bytes(parcel.num_bytes);
  for_each_place(sends, outgoing,
                 [&](const Message& message, std::byte* place) { memory.read(place, message.data, message.bytes); });
  parcels_sent_ = std::move(sent);
  std::vector<Parcel> incoming = parcels(recvs, parcels_expected_);
  auto exchange = start(std::string(label), std::move(outgoing), std::move(incoming));
  in_flight_.emplace(next_ticket_, InFlight{std::move(exchange), {recvs.begin(), recvs.end()}});
  return next_ticket_++;
}

StagedTransport::InFlight StagedTransport::finish_exchange(std::int64_t ticket) {
  const auto found = in_flight_.find(ticket);
  require(found != in_flight_.end(), "rank {}: ticket {} is not in flight", rank_, ticket);
  found->second.exchange->complete(std::chrono::steady_clock::now() + time_limit_);
  InFlight finished = std::move(found->second);
  in_flight_.erase(found);
  return finished;
}

std::int64_t StagedTransport::begin(std::span<const Message> sends, std::span<const Message> recvs,
                                    std::string_view label) {
  return poisoning([&] { return start_exchange(sends, recvs, label, memory_); });
}

void StagedTransport::wait(std::int64_t ticket) {
  const InFlight finished = poisoning([&] { return finish_exchange(ticket); });
  for_each_place(finished.recvs, finished.exchange->incoming(), [&](const Message& message, const std::byte* place) {
    memory_.write(message.data, place, message.bytes);
    if (message.peer != rank_) bytes_received_ += message.bytes;
  });
}

void StagedTransport::exchange_host(std::span<const Message> sends, std::span<const Message> recvs,
                                    std::string_view label) {
  const MemoryAccess host;
  const InFlight finished = poisoning([&] { return finish_exchange(start_exchange(sends, recvs, label, host)); });
  for_each_place(recvs, finished.exchange->incoming(), [&](const Message& message, const std::byte* place) {
    host.write(message.data, place, message.bytes);
  });
}

/// Through rank 0, so that each rank has to do with one other.
void StagedTransport::agree(std::uint64_t value, std::string_view what) {
  const std::string label = fmt::format("agreement on {}", what);
  std::vector<std::uint64_t> values(static_cast<std::size_t>(num_ranks_), value);
  const auto all_bytes = static_cast<std::int64_t>(values.size() * sizeof(value));
  std::vector<Message> up, down;
  if (rank_ == 0) {
    for (std::int32_t peer = 1; peer < num_ranks_; ++peer) {
      up.push_back({peer, &values[static_cast<std::size_t>(peer)], sizeof(value)});
      down.push_back({peer, values.data(), all_bytes});
    }
    exchange_host({}, up, label);
    exchange_host(down, {}, label);
  } else {
    up.push_back({0, &value, sizeof(value)});
    down.push_back({0, values.data(), all_bytes});
    exchange_host(up, down, label);
  }
  check_agreement(values, what);
}

}  // namespace marble

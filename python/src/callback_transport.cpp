// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "callback_transport.hpp"

#include "marble/error.hpp"

#include <cstddef>
#include <map>
#include <nanobind/stl/vector.h>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace marble::python {
namespace {

constexpr std::int64_t kNothingInFlight = -1;

class CallbackTransport final : public Transport {
 public:
  CallbackTransport(std::string name, std::int32_t rank, std::int32_t num_ranks, nb::object peers)
      : name_(std::move(name)), rank_(rank), num_ranks_(num_ranks), peers_(std::move(peers)) {
    require(rank >= 0 && rank < num_ranks, "rank {} is not in 0..{}", rank, num_ranks - 1);
    require(num_ranks == 1 || !peers_.is_none(), "{} ranks need peers", num_ranks);
  }

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::int32_t rank() const override { return rank_; }
  [[nodiscard]] std::int32_t num_ranks() const override { return num_ranks_; }
  void set_memory_access(MemoryAccess memory) override {
    memory_ = std::move(memory);
    staged_ = true;
  }
  [[nodiscard]] std::int64_t bytes_received() const override { return bytes_received_; }

  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override {
    check(sends);
    check(recvs);
    check_healthy();
    copy_own(sends, recvs, label);
    std::vector<Message> out = for_others(sends), in = for_others(recvs);
    if (out.empty() && in.empty()) return kNothingInFlight;
    Flight flight;
    if (staged_) stage(out, in, flight);
    const nb::gil_scoped_acquire held;
    const auto ticket = guarded([&] {
      return nb::cast<std::int64_t>(
          peers_.attr("begin")(to_list(out), to_list(in), nb::str(label.data(), label.size())));
    });
    flights_.emplace(ticket, std::move(flight));
    return ticket;
  }

  void wait(std::int64_t ticket) override {
    if (ticket == kNothingInFlight) return;
    check_healthy();
    const auto flight = flights_.extract(ticket);
    ensure(!flight.empty(), "ticket {} is not awaited", ticket);
    {
      const nb::gil_scoped_acquire held;
      guarded([&] { bytes_received_ += nb::cast<std::int64_t>(peers_.attr("wait")(ticket)); });
    }
    for (const Arrival& arrival : flight.mapped().arrivals)
      memory_.write(arrival.target, arrival.host.data(), std::ssize(arrival.host));
  }

  void fail(std::string_view) override { has_failed_ = true; }

  void agree(std::uint64_t value, std::string_view what) override {
    check_healthy();
    if (num_ranks_ == 1) return;
    const nb::gil_scoped_acquire held;
    const auto values = guarded([&] { return nb::cast<std::vector<std::uint64_t>>(peers_.attr("gather")(value)); });
    for (std::size_t other = 0; other < values.size(); ++other)
      require(values[other] == values[0], "ranks disagree on the {}: rank 0 has {}, rank {} has {}", what, values[0],
              other, values[other]);
  }

 private:
  void check(std::span<const Message> messages) const {
    for (const Message& message : messages) {
      require(message.peer >= 0 && message.peer < num_ranks_, "peer {} is not in 0..{}", message.peer, num_ranks_ - 1);
      require(message.bytes >= 0, "message of {} bytes", message.bytes);
      require(message.data != nullptr || message.bytes == 0, "message of {} bytes has no data", message.bytes);
    }
  }

  void check_healthy() const {
    if (has_failed_)
      throw TransportError(fmt::format("rank {}: transport {} failed before; make a new one", rank_, name_));
  }

  template <typename Call>
  std::invoke_result_t<Call> guarded(Call&& call) {
    try {
      return call();
    } catch (...) {
      has_failed_ = true;
      throw;
    }
  }

  [[nodiscard]] std::vector<Message> for_others(std::span<const Message> messages) const {
    std::vector<Message> result;
    for (const Message& message : messages)
      if (message.peer != rank_ && message.bytes > 0) result.push_back(message);
    return result;
  }

  /// Host memory that a message arrives in, and the memory that it is for.
  struct Arrival {
    void* target;
    std::vector<std::byte> host;
  };
  /// Host memory of an exchange under way; empty when messages name host memory themselves.
  struct Flight {
    std::vector<std::vector<std::byte>> departures;
    std::vector<Arrival> arrivals;
  };

  /// Puts host memory in the place of what the messages name.
  void stage(std::vector<Message>& out, std::vector<Message>& in, Flight& flight) const {
    for (Message& message : out) {
      auto& host = flight.departures.emplace_back(static_cast<std::size_t>(message.bytes));
      memory_.read(host.data(), message.data, message.bytes);
      message.data = host.data();
    }
    for (Message& message : in) {
      Arrival& arrival = flight.arrivals.emplace_back(
          Arrival{message.data, std::vector<std::byte>(static_cast<std::size_t>(message.bytes))});
      message.data = arrival.host.data();
    }
  }

  /// Messages to this rank itself, in the order given.
  void copy_own(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) {
    auto recv = recvs.begin();
    const auto next_own = [&](auto from, auto end) {
      while (from != end && from->peer != rank_) ++from;
      return from;
    };
    for (const Message& send : sends) {
      if (send.peer != rank_) continue;
      recv = next_own(recv, recvs.end());
      ensure(recv != recvs.end() && recv->bytes == send.bytes, "{}: a message to rank {} itself has no receiver", label,
             rank_);
      std::vector<std::byte> host(static_cast<std::size_t>(send.bytes));
      memory_.read(host.data(), send.data, send.bytes);
      memory_.write(recv->data, host.data(), send.bytes);
      ++recv;
    }
  }

  [[nodiscard]] static nb::list to_list(const std::vector<Message>& messages) {
    nb::list list;
    for (const Message& message : messages)
      list.append(nb::make_tuple(message.peer, reinterpret_cast<std::uintptr_t>(message.data), message.bytes));
    return list;
  }

  std::string name_;
  std::int32_t rank_, num_ranks_;
  nb::object peers_;
  MemoryAccess memory_;
  bool staged_ = false;
  std::map<std::int64_t, Flight> flights_;
  std::int64_t bytes_received_ = 0;
  bool has_failed_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_callback_transport(const std::string& name, std::int32_t rank, std::int32_t num_ranks,
                                                   nb::object peers) {
  return std::make_unique<CallbackTransport>(name, rank, num_ranks, std::move(peers));
}

}  // namespace marble::python

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "callback_transport.hpp"

#include "marble/error.hpp"

#include <cstring>
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
  void set_memory_access(MemoryAccess memory) override { memory_ = std::move(memory); }
  [[nodiscard]] std::int64_t bytes_received() const override { return bytes_received_; }

  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override {
    check(sends);
    check(recvs);
    check_healthy();
    copy_own(sends, recvs, label);
    if (!reaches_others(sends) && !reaches_others(recvs)) return kNothingInFlight;
    const nb::gil_scoped_acquire held;
    return guarded([&] {
      return nb::cast<std::int64_t>(
          peers_.attr("begin")(to_list(sends), to_list(recvs), nb::str(label.data(), label.size())));
    });
  }

  void wait(std::int64_t ticket) override {
    if (ticket == kNothingInFlight) return;
    check_healthy();
    const nb::gil_scoped_acquire held;
    guarded([&] { bytes_received_ += nb::cast<std::int64_t>(peers_.attr("wait")(ticket)); });
  }

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
    if (failed_) throw TransportError(fmt::format("rank {}: transport {} failed before; make a new one", rank_, name_));
  }

  template <typename Call>
  std::invoke_result_t<Call> guarded(Call&& call) {
    try {
      return call();
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  [[nodiscard]] bool reaches_others(std::span<const Message> messages) const {
    for (const Message& message : messages)
      if (message.peer != rank_ && message.bytes > 0) return true;
    return false;
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
      std::memmove(recv->data, send.data, static_cast<std::size_t>(send.bytes));
      ++recv;
    }
  }

  [[nodiscard]] nb::list to_list(std::span<const Message> messages) const {
    nb::list list;
    for (const Message& message : messages)
      if (message.peer != rank_ && message.bytes > 0)
        list.append(nb::make_tuple(message.peer, reinterpret_cast<std::uintptr_t>(message.data), message.bytes));
    return list;
  }

  std::string name_;
  std::int32_t rank_, num_ranks_;
  nb::object peers_;
  MemoryAccess memory_;
  std::int64_t bytes_received_ = 0;
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_callback_transport(const std::string& name, std::int32_t rank, std::int32_t num_ranks,
                                                   nb::object peers) {
  return std::make_unique<CallbackTransport>(name, rank, num_ranks, std::move(peers));
}

}  // namespace marble::python

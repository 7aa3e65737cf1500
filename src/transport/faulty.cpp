// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/decorator.hpp"
#include "transport/report.hpp"

#include "marble/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace marble {
namespace {

class FaultyTransport final : public TransportDecorator {
 public:
  FaultyTransport(Transport& inner, const Fault& fault, const TransportOptions& options)
      : TransportDecorator(inner), fault_(fault), time_limit_(options.time_limit), memory_(options.memory) {}

  [[nodiscard]] std::string_view name() const override { return "faulty"; }

  void set_memory_access(MemoryAccess memory) override {
    inner_.set_memory_access(memory);
    memory_ = std::move(memory);
  }

  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override {
    check_healthy();
    const std::int64_t index = next_exchange_;
    if (index == fault_.fail_at_exchange) break_with(fmt::format("rank {} failed in '{}' (injected)", rank(), label));
    InFlight exchange{.begun = std::chrono::steady_clock::now()};
    if (index == fault_.stall_at_exchange)
      exchange.stall = describe_stall(sends, recvs, label);
    else
      exchange.ticket = inner_.begin(sends, recvs, label);
    if (index == fault_.corrupt_at_exchange) exchange.corrupted = first_with_bytes(recvs);
    in_flight_.emplace(index, std::move(exchange));
    ++next_exchange_;
    return index;
  }

  void wait(std::int64_t ticket) override {
    check_healthy();
    const auto found = in_flight_.find(ticket);
    require(found != in_flight_.end(), "rank {}: ticket {} is not in flight", rank(), ticket);
    const InFlight exchange = std::move(found->second);
    in_flight_.erase(found);
    if (!exchange.stall.empty()) {
      std::this_thread::sleep_for(time_limit_);
      break_with(exchange.stall);
    }
    inner_.wait(exchange.ticket);
    std::this_thread::sleep_until(exchange.begun + fault_.delay);
    if (exchange.corrupted != nullptr) invert_byte(exchange.corrupted);
  }

  void agree(std::uint64_t value, std::string_view what) override {
    check_healthy();
    inner_.agree(value, what);
  }

  void check() override {
    check_healthy();
    inner_.check();
  }

 private:
  struct InFlight {
    std::chrono::steady_clock::time_point begun;
    std::int64_t ticket = -1;   // of the inner transport
    void* corrupted = nullptr;  // the byte to invert
    std::string stall = {};     // what to say when a stalled wait reaches its limit
  };

  static void* first_with_bytes(std::span<const Message> recvs) {
    const auto found = std::find_if(recvs.begin(), recvs.end(), [](const Message& m) { return m.bytes > 0; });
    return found == recvs.end() ? nullptr : found->data;
  }

  [[nodiscard]] std::string describe_stall(std::span<const Message> sends, std::span<const Message> recvs,
                                           std::string_view label) const {
    const auto& messages = recvs.empty() ? sends : recvs;
    if (messages.empty())
      return fmt::format("rank {} stalled in '{}', which has no messages (injected)", rank(), label);
    std::vector<std::int64_t> sizes;
    for (const Message& message : messages)
      if (message.peer == messages.front().peer) sizes.push_back(message.bytes);
    return describe_timeout(rank(), time_limit_, sizes, recvs.empty() ? "to" : "from", messages.front().peer, label) +
           " (injected)";
  }

  void invert_byte(void* data) const {
    std::byte byte{};
    memory_.read(&byte, data, 1);
    byte = ~byte;
    memory_.write(data, &byte, 1);
  }

  void check_healthy() const {
    if (!failure_.empty())
      throw TransportError(fmt::format("rank {}: this transport failed before: {}", rank(), failure_));
  }

  [[noreturn]] void break_with(const std::string& reason) {
    failure_ = reason;
    throw TransportError(reason);
  }

  Fault fault_;
  std::chrono::milliseconds time_limit_;
  MemoryAccess memory_;
  std::map<std::int64_t, InFlight> in_flight_;  // by index of the exchange, which is its ticket
  std::int64_t next_exchange_ = 0;
  std::string failure_;
};

}  // namespace

std::unique_ptr<Transport> make_faulty_transport(Transport& inner, const Fault& fault,
                                                 const TransportOptions& options) {
  return std::make_unique<FaultyTransport>(inner, fault, options);
}

}  // namespace marble

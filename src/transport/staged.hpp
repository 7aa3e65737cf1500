// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What transports that move host bytes share: messages to one peer are staged into one parcel, tickets, the agreement,
// counting and poisoning. A concrete transport moves parcels.

#include "marble/transport.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace marble {

using Deadline = std::chrono::steady_clock::time_point;

/// Everything that one exchange carries from one rank to another: the messages end to end.
struct Parcel {
  std::int32_t peer = 0;
  std::int64_t sequence = 0;             // counts the parcels from one rank to another; both sides count alike
  std::vector<std::int64_t> sizes = {};  // bytes of each message
  std::int64_t num_bytes = 0;            // their sum
  std::unique_ptr<std::byte[]> bytes = nullptr;
};

/// Of `num_bytes` bytes, not initialised.
[[nodiscard]] std::unique_ptr<std::byte[]> make_bytes(std::int64_t num_bytes);

/// Parcels on their way. Destroying it without `complete` abandons the exchange.
class PendingExchange {
 public:
  PendingExchange(std::string label, std::vector<Parcel> incoming)
      : label_(std::move(label)), incoming_(std::move(incoming)) {}
  virtual ~PendingExchange() = default;
  PendingExchange(const PendingExchange&) = delete;
  PendingExchange& operator=(const PendingExchange&) = delete;

  /// Returns when all incoming parcels hold their bytes. Throws TransportError.
  virtual void complete(Deadline deadline) = 0;

  [[nodiscard]] const std::string& label() const { return label_; }
  [[nodiscard]] const std::vector<Parcel>& incoming() const { return incoming_; }

 protected:
  std::string label_;
  std::vector<Parcel> incoming_;  // by peer, in the order of the first message from it
};

class StagedTransport : public Transport {
 public:
  StagedTransport(std::int32_t rank, std::int32_t num_ranks, const TransportOptions& options);

  [[nodiscard]] std::int32_t rank() const final { return rank_; }
  [[nodiscard]] std::int32_t num_ranks() const final { return num_ranks_; }
  [[nodiscard]] std::int64_t bytes_received() const final { return bytes_received_; }
  void set_memory_access(MemoryAccess memory) final;
  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) final;
  void wait(std::int64_t ticket) final;
  void agree(std::uint64_t value, std::string_view what) final;
  void check() final;
  void fail(std::string_view reason) final;

 protected:
  /// Hands over the outgoing parcels and makes ready for the incoming ones, whose sizes are what this rank expects.
  virtual std::unique_ptr<PendingExchange> start(std::string label, std::vector<Parcel> outgoing,
                                                 std::vector<Parcel> incoming) = 0;
  /// Called once, when a TransportError is about to leave.
  virtual void on_failure(const std::string& reason) = 0;

  [[nodiscard]] std::chrono::milliseconds time_limit() const { return time_limit_; }

 private:
  struct InFlight {
    std::unique_ptr<PendingExchange> exchange;
    std::vector<Message> recvs;
  };

  std::vector<Parcel> parcels(std::span<const Message> messages, std::vector<std::int64_t>& counts) const;
  std::int64_t start_exchange(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label,
                              const MemoryAccess& memory);
  InFlight finish_exchange(std::int64_t ticket);
  void exchange_host(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label);
  template <typename Fn>
  auto poisoning(Fn&& fn);

  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::chrono::milliseconds time_limit_;
  MemoryAccess memory_;
  std::vector<std::int64_t> parcels_sent_;      // by peer
  std::vector<std::int64_t> parcels_expected_;  // by peer
  std::map<std::int64_t, InFlight> in_flight_;
  std::int64_t next_ticket_ = 0;
  std::int64_t bytes_received_ = 0;
  std::string failure_;  // why this transport is poisoned
};

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What moves the device parcels of exchanges, on side queues. The progress thread alone calls it.

#include "transport/nccl/exchange.hpp"

#include <cstdint>
#include <vector>

namespace marble::nccl {

class Courier {
 public:
  virtual ~Courier() = default;

  /// True when senders are to announce that sizes agree.
  [[nodiscard]] virtual bool wants_announcements() const = 0;
  /// One look at the exchanges with something left to start, oldest first.
  virtual void begin_round() = 0;
  /// Asks the queues for what is ready. Returns the peer of the first parcel that is not, or kAll.
  [[nodiscard]] virtual std::int32_t advance(Exchange& exchange) = 0;
  static constexpr std::int32_t kAll = -1;
  /// False when it is sure that parcel `sequence` from `peer` is not here yet.
  [[nodiscard]] virtual bool may_have_arrived(std::int32_t peer, Word sequence) const = 0;
  /// Gives up what is under way, after a failure.
  virtual void abort() noexcept = 0;
};

}  // namespace marble::nccl

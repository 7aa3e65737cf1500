// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What moves the device parcels of exchanges, on the side queue. The progress thread alone calls it.

#include "transport/nccl/exchange.hpp"

#include <cstdint>
#include <vector>

namespace marble::nccl {

enum class Progress {
  all,   // everything is started
  some,  // something is left
  stop,  // something is left, and nothing later can start before it
};

class Courier {
 public:
  virtual ~Courier() = default;

  /// One look at the exchanges under way, oldest first.
  virtual void begin_round() = 0;
  /// Starts what can be started.
  virtual Progress advance(Exchange& exchange) = 0;
  /// False when it is sure that parcel `sequence` from `peer` is not here yet.
  [[nodiscard]] virtual bool may_have_arrived(std::int32_t peer, Word sequence) const = 0;
  /// Gives up what is under way, after a failure.
  virtual void abort() noexcept = 0;
};

}  // namespace marble::nccl

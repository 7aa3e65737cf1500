// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What moves the device parcels of exchanges, on the side queue. The progress thread alone calls it.

#include "transport/nccl/exchange.hpp"

#include <cstdint>
#include <vector>

namespace marble::nccl {

class Courier {
 public:
  virtual ~Courier() = default;

  /// One look at the exchanges under way, oldest first.
  virtual void begin_round() = 0;
  /// Starts what can be started of an exchange that this rank's compute stream has begun; true when all has been.
  virtual bool advance(Exchange& exchange) = 0;
  /// Gives up what is under way, after a failure.
  virtual void abort() noexcept = 0;
};

}  // namespace marble::nccl

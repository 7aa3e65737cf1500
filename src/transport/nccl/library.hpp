// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The seam to a library that sends and receives between devices.

#include "transport/nccl/courier.hpp"
#include "transport/nccl/failure.hpp"
#include "transport/staged.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace marble::nccl {

class Library {
 public:
  virtual ~Library() = default;
  /// Name, version and where it was found.
  [[nodiscard]] virtual std::string describe() const = 0;
  /// What rank 0 makes and all ranks join by.
  [[nodiscard]] virtual std::string make_id() = 0;
  /// Collective. Its calls end when `failure` happens. Throws BackendError at the deadline.
  [[nodiscard]] virtual std::unique_ptr<Courier> join(const std::string& id, std::int32_t rank, std::int32_t num_ranks,
                                                      const Failure& failure, Deadline deadline) = 0;
};

}  // namespace marble::nccl

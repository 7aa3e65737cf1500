// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "marble/error.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace marble::nccl {

/// Why a transport has failed; the first reason counts. Thread-safe.
class Failure {
 public:
  explicit Failure(std::int32_t rank) : rank_(rank) {}

  /// False when it had failed before.
  bool set(std::string reason) {
    const std::scoped_lock lock(mutex_);
    if (happened_) return false;
    reason_ = std::move(reason);
    happened_ = true;
    return true;
  }
  [[nodiscard]] bool happened() const { return happened_; }
  [[nodiscard]] std::string reason() const {
    const std::scoped_lock lock(mutex_);
    return reason_;
  }

  /// Throws TransportError if it has failed: the first time with the reason alone.
  void check() {
    if (happened_) raise();
  }
  [[noreturn]] void raise() {
    const std::scoped_lock lock(mutex_);
    if (!std::exchange(is_reported_, true)) throw TransportError(reason_);
    throw TransportError(fmt::format("rank {}: this transport failed before: {}", rank_, reason_));
  }

 private:
  std::int32_t rank_;
  mutable std::mutex mutex_;
  std::atomic<bool> happened_{false};
  bool is_reported_ = false;
  std::string reason_;
};

}  // namespace marble::nccl

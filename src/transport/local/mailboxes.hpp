// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where ranks of one process leave parcels for each other. Thread-safe. A parcel is handed over whole, so its bytes
// belong to one rank at a time.

#include "transport/staged.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace marble {

class Mailboxes {
 public:
  explicit Mailboxes(std::int32_t num_ranks);

  void send(std::int32_t source, std::int32_t target, Parcel parcel);

  enum class Outcome { arrived, timed_out, source_left, group_failed };
  /// Waits until parcel `sequence` from `source` to `target` can be moved into `parcel`, or will not come.
  [[nodiscard]] Outcome receive(std::int32_t source, std::int32_t target, std::int64_t sequence, Deadline deadline,
                                Parcel& parcel);

  /// Ends all waits for parcels that have not arrived. The first failure is the one that counts.
  void fail(std::int32_t rank, const std::string& reason);
  /// `rank` will send no more.
  void leave(std::int32_t rank);

  struct Failure {
    std::int32_t rank = 0;
    std::string reason;
  };
  [[nodiscard]] std::optional<Failure> failure() const;

 private:
  using Box = std::map<std::int64_t, Parcel>;  // by sequence
  [[nodiscard]] Box& box(std::int32_t source, std::int32_t target);
  void wake_all();

  mutable std::mutex mutex_;
  std::int32_t num_ranks_;
  std::vector<Box> boxes_;
  std::vector<std::condition_variable> arrived_;  // by target
  std::vector<char> left_;
  std::optional<Failure> failure_;
};

}  // namespace marble

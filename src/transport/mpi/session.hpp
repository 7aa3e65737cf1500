// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The process's MPI: initialised once, ended at process exit if we initialised it.

#include "transport/staged.hpp"

#include <mpi.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace marble {

/// Throws TransportError with MPI's own words unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view call);

/// Calls done() until it is true, and returns true, or until the deadline. MPI makes progress in these calls.
template <typename Done>
[[nodiscard]] bool poll_until(Deadline deadline, Done&& done) {
  constexpr int kEagerPolls = 1'000;
  for (int polls = 0; !done(); ++polls) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    // Yields first, for short waits; then sleeps, so that ranks that share a core let each other work.
    if (polls < kEagerPolls)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

class MpiSession {
 public:
  /// Initialises MPI at the first call unless the application has.
  static MpiSession& get();

  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  ~MpiSession();

  /// MPI_Finalize would wait for ranks that may be gone: end them all with MPI_Abort at exit instead.
  void mark_failed() { failed_ = true; }
  [[nodiscard]] bool failed() const { return failed_; }

  /// Keeps memory that MPI may still read or write until the process ends.
  void park(std::shared_ptr<void> memory);

 private:
  MpiSession();

  bool owns_mpi_ = false;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> parked_;
};

/// A duplicate of MPI_COMM_WORLD that returns errors, so that our messages never meet the application's.
class Communicator {
 public:
  /// Collective; throws TransportError when not all ranks come within the limit.
  Communicator(MpiSession& session, std::chrono::milliseconds time_limit);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  [[nodiscard]] MPI_Comm get() const { return *communicator_; }
  [[nodiscard]] std::int32_t rank() const;
  [[nodiscard]] std::int32_t size() const;

 private:
  MpiSession& session_;
  std::shared_ptr<MPI_Comm> communicator_;  // parked when the ranks never meet
};

}  // namespace marble

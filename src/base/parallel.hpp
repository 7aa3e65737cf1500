// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Short-lived threads for the planner and the CPU backend. Nothing outlives the call, so a forked data-loader worker
// finds no broken pool.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace marble {

/// Calls fn(i) for every i in [0, count), from up to `num_threads` threads (the caller is one of them), in no fixed
/// order. Rethrows the first exception after all threads have stopped.
template <typename Fn>
void parallel_for(std::int64_t count, int num_threads, Fn&& fn) {
  const auto workers = std::min<std::int64_t>(num_threads, count);
  if (workers <= 1) {
    for (std::int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  auto drain = [&] {
    try {
      for (std::int64_t i = next++; i < count; i = next++) fn(i);
    } catch (...) {
      next = count;
      const std::scoped_lock lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(workers) - 1);
    for (std::int64_t t = 1; t < workers; ++t) threads.emplace_back(drain);
    drain();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace marble

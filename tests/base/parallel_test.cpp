// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "base/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

namespace marble {
namespace {

TEST(ParallelFor, CallsEachIndexOnce) {
  for (const int threads : {1, 2, 3, 8})
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      parallel_for(count, threads, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      for (const auto& n : calls) EXPECT_EQ(n, 1) << threads << " threads, count " << count;
    }
}

TEST(ParallelFor, WritesAreVisibleAfterwards) {
  std::vector<std::int64_t> squares(500);
  parallel_for(500, 4, [&](std::int64_t i) { squares[static_cast<std::size_t>(i)] = i * i; });
  for (std::int64_t i = 0; i < 500; ++i) EXPECT_EQ(squares[static_cast<std::size_t>(i)], i * i);
}

TEST(ParallelFor, RunsOnTheCallerWhenOneThreadIsEnough) {
  const auto expect_caller = [caller = std::this_thread::get_id()](std::int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
  };
  parallel_for(5, 1, expect_caller);
  parallel_for(1, 8, expect_caller);
  parallel_for(5, 0, expect_caller);
}

TEST(ParallelFor, RethrowsAfterAllThreadsHaveStopped) {
  for (const int threads : {1, 2, 8}) {
    std::atomic<int> running{0};
    const auto throws_at_ten = [&](std::int64_t i) {
      ++running;
      if (i == 10) {
        --running;
        throw std::out_of_range("index 10");
      }
      std::this_thread::yield();
      --running;
    };
    EXPECT_THROW(parallel_for(10'000, threads, throws_at_ten), std::out_of_range);
    EXPECT_EQ(running, 0);
  }
}

TEST(ParallelFor, AnExceptionEndsTheRestEarly) {
  std::atomic<std::int64_t> calls{0};
  const auto always_throws = [&](std::int64_t) {
    ++calls;
    throw std::runtime_error("no");
  };
  EXPECT_THROW(parallel_for(1'000'000, 4, always_throws), std::runtime_error);
  EXPECT_LE(calls, 4);
}

TEST(ParallelFor, Nests) {
  std::atomic<int> calls{0};
  parallel_for(4, 2, [&](std::int64_t) { parallel_for(5, 2, [&](std::int64_t) { ++calls; }); });
  EXPECT_EQ(calls, 20);
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks as processes that run the same tests: rank 0 reports as usual, the others report their failures only.

#include <gtest/gtest.h>

#include <cstdio>

namespace marble {

class FailuresOfRank final : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOfRank(int rank) : rank_(rank) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "[rank %d] %s: %s:%d: %s\n", rank_, test != nullptr ? test->name() : "outside a test",
                 result.file_name(), result.line_number(), result.message());
  }

 private:
  int rank_;
};

inline void report_as_rank(int rank) {
  if (rank == 0) return;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOfRank(rank));
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Of test programs that need a GPU: without one they run nothing, and say so by the exit code that CTest counts as
// skipped. Their cases can be listed anywhere.

#include "marble/cuda.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (!testing::GTEST_FLAG(list_tests) && !marble::cuda_available()) {
    fmt::print("skipped: no GPU on this machine\n");
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "transport/failures_of_rank.hpp"
#include "transport/gpu_ranks.hpp"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  marble::report_as_rank(marble::gpu_test_ranks().rank);
  return RUN_ALL_TESTS();
}

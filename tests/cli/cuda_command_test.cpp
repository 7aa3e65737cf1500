// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/run_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace marble::test {
namespace {

using testing::HasSubstr;

const std::string kVerify = "verify bagel-mix --tokens 6000 --heads 8/2 --dim 128 --ring 3 --backend cuda ";

TEST(CommandLineOnGpu, RanksThatShareAGpuPass) {
  const CommandResult result = run_marble(kVerify + "--transport local --json");
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(result.json()["pass"], true);
  EXPECT_GT(result.json()["ran"]["backward_tiles"], 0);
}

TEST(CommandLineOnGpu, NamesADtypeThatTheBackendRefuses) {
  const CommandResult result = run_marble(kVerify + "--dtype fp32");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("marble: error: dtype fp32 is not supported by the cuda backend; nearest: bf16"));
}

}  // namespace
}  // namespace marble::test

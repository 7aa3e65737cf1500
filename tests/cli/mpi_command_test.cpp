// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/run_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace marble::test {
namespace {

using testing::HasSubstr;

const std::string kSmall = "--heads 2/1 --dim 16 --transport mpi ";
const std::string kVerify = "MARBLE verify gemma3-docs --tokens 3000 --seed 1 " + kSmall;

TEST(CommandLineOverMpi, ThreeProcessesPassAndOnePrints) {
  const CommandResult result = run_mpi("-n 3 " + kVerify + "--ring 3 --dtype bf16 --json");
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(result.json()["pass"], true);
  EXPECT_EQ(result.json()["mesh"]["ring"], 3);
}

TEST(CommandLineOverMpi, BenchTimesProcessesAndOnePrints) {
  const CommandResult result = run_mpi("-n 2 MARBLE bench gemma3-docs --tokens 2000 --repeats 1 --layers 1 " + kSmall +
                                       "--ring 2 --strategy ring --json");
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_GT(result.json()["layers"][0]["both"]["layer_ms"].get<double>(), 0.0);
  EXPECT_EQ(result.json()["layers"][0]["forward"]["received_bytes"], 2000 * 2 * 16 * 2);
}

TEST(CommandLineOverMpi, RankZeroWritesTheTraceOfAllProcesses) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("trace.json");
  const CommandResult result = run_mpi("-n 2 MARBLE bench gemma3-docs --tokens 2000 --repeats 1 --layers 1 " + kSmall +
                                       "--ring 2 --trace " + file);
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  std::set<int> ranks;
  const nlohmann::json trace = nlohmann::json::parse(scratch.read("trace.json"));
  for (const auto& event : trace["traceEvents"]) ranks.insert(event["pid"].get<int>());
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
}

TEST(CommandLineOverMpi, MeshOfAnotherSizeIsRefused) {
  const CommandResult result = run_mpi("-n 2 " + kVerify + "--ring 3");
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("marble: error: 2 processes were started but the mesh has 3 ranks"));
}

TEST(CommandLineOverMpi, RanksWithDifferentLayoutsAreRefused) {
  const CommandResult result = run_mpi("-n 1 " + kVerify + "--ring 2 : -n 1 MARBLE verify gemma3-docs --tokens 3000 " +
                                       "--seed 2 " + kSmall + "--ring 2");
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("marble: error: "));
  EXPECT_THAT(result.err, HasSubstr("rank"));
}

}  // namespace
}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/run_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace marble::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Simulate, RanksCandidatesAndShowsEveryStep) {
  const CommandResult result = run_marble("simulate gemma3-docs --tokens 65536 --gpus 16 --hardware h100 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json document = result.json();
  const json& candidates = document["candidates"];
  ASSERT_GT(candidates.size(), 4U);
  // The first receives fewest keys of those within a hundredth of the fastest; the others follow by time.
  EXPECT_LE(candidates[0]["predicted_ms"].get<double>(), 1.01 * candidates[1]["predicted_ms"].get<double>());
  for (std::size_t c = 1; c < candidates.size(); ++c) {
    EXPECT_TRUE(c == 1 || candidates[c]["predicted_ms"] >= candidates[c - 1]["predicted_ms"]);
    EXPECT_EQ(candidates[c]["ring"].get<int>() * candidates[c]["ulysses"].get<int>(), 16);
  }
  EXPECT_EQ(document["predicted_ms"], candidates[0]["predicted_ms"]);
  ASSERT_EQ(document["layers"].size(), 2U);
  double sum = 0.0;
  for (const json& layer : document["layers"]) {
    EXPECT_FALSE(layer["cost"]["forward"]["steps"].empty());
    EXPECT_FALSE(layer["why"].get<std::string>().empty());
    sum += layer["count"].get<int>() * layer["predicted_ms"].get<double>();
  }
  EXPECT_NEAR(sum, document["predicted_ms"].get<double>(), 1e-3);
  EXPECT_EQ(document["hardware"]["name"], "h100");
  EXPECT_TRUE(document["warnings"].empty());
}

TEST(Simulate, SaysInWordsWhoWonAndWhichShardHidesItsHop) {
  const CommandResult result = run_marble("simulate bagel-longvideo --tokens 524288 --gpus 16");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("chunks over 16 x 1 receives fewest keys of all within 1 %"));
  EXPECT_THAT(result.out, HasSubstr("work hides a ring's hop from"));
  EXPECT_THAT(result.out, HasSubstr("left out: zigzag"));
}

TEST(Simulate, WarnsOfSingleTokenDecoding) {
  const ScratchFolder scratch;
  const std::string decode =
      scratch.write("decode.json", R"({"marble_layout": 1, "samples": [[["causal", 1]], [["causal", 1]]]})");
  const CommandResult result = run_marble("simulate " + decode + " --gpus 8 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.json()["warnings"][0].get<std::string>(), HasSubstr("single-token decoding"));
}

TEST(Simulate, RefusesWhatCannotBe) {
  const auto refusal = [](const std::string& flags) {
    const CommandResult result = run_marble("simulate bagel-mix --tokens 8192 " + flags);
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(refusal("--gpus 1025"), HasSubstr("1025 ranks are not in 1..1024"));
  EXPECT_THAT(refusal("--gpus 0"), HasSubstr("0 ranks"));
  EXPECT_THAT(refusal("--gpus 8 --ulysses 3"), HasSubstr("ulysses 3 does not divide 8 GPUs"));
  EXPECT_THAT(refusal("--gpus 8 --hardware h300"), HasSubstr("h100, h200"));
  EXPECT_THAT(refusal("--gpus 8 --hardware no/file.json"), HasSubstr("cannot read hardware file"));
}

TEST(PlanCandidates, AreRankedWithReasons) {
  const CommandResult result =
      run_marble("plan gemma3-docs --tokens 65536 --ring 4 --ulysses 2 --layers 10,52@1024 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json document = result.json();
  EXPECT_EQ(document["candidates"][0]["placement"], document["placement"]);
  EXPECT_EQ(document["layers"][1]["strategy"], document["candidates"][0]["layers"][1]["strategy"]);
  EXPECT_GT(document["choice_ms"].get<double>(), 0.0);
  EXPECT_FALSE(document["why"].get<std::string>().empty());
  EXPECT_EQ(document["head_budget"]["without_replication"], 16);
  EXPECT_GE(document["locality"].get<double>(), 0.0);
  EXPECT_LE(document["locality"].get<double>(), 1.0);
}

TEST(PlanCandidates, AHardwareFileWithoutAConstantIsRefusedByName) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("hw.json", R"({"marble_hardware": 1, "name": "x"})");
  const CommandResult result = run_marble("plan bagel-mix --tokens 8192 --ring 2 --hardware " + file);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("forward_full_gflops is missing"));
}

}  // namespace
}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/run_command.hpp"

#include "marble/generators.hpp"
#include "marble/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace marble::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kPack = "gemma3-docs --tokens 3000 --seed 1 ";
const std::string kSmallModel = "--heads 4/2 --dim 32 --layers 1,5@512 ";

TEST(CommandLine, HelpNamesEveryCommandAndSucceeds) {
  const CommandResult result = run_marble("--help");
  EXPECT_EQ(result.code, 0);
  for (const char* command : {"layouts", "layout", "plan", "verify"}) EXPECT_THAT(result.out, HasSubstr(command));
  EXPECT_EQ(result.err, "");
}

TEST(CommandLine, LayoutsListsEveryGeneratorWithItsParameters) {
  const CommandResult result = run_marble("layouts --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json list = result.json()["layouts"];
  ASSERT_EQ(list.size(), generators().size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i]["name"], generators()[i].name);
    EXPECT_EQ(list[i]["heads"], generators()[i].heads);
    EXPECT_EQ(list[i]["parameters"].size(), generators()[i].parameters.size());
    EXPECT_FALSE(list[i]["layers"].empty());
    EXPECT_FALSE(list[i]["modes"].empty());
  }
}

TEST(CommandLine, LayoutCountsAndWritesWhatTheLibraryGenerates) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("pack.json");
  const CommandResult result = run_marble("layout " + kPack + "--json --out " + file);
  ASSERT_EQ(result.code, 0) << result.err;
  const Layout layout = generate("gemma3-docs", 3000, 1);
  const json document = result.json();
  EXPECT_EQ(document["tokens"], 3000);
  EXPECT_EQ(document["samples"], layout.num_samples());
  EXPECT_EQ(document["spans"], layout.spans.size());
  std::int64_t by_mode = 0;
  for (const auto& count : document["tokens_by_mode"]) by_mode += count.get<std::int64_t>();
  EXPECT_EQ(by_mode, 3000);
  EXPECT_EQ(read_layout(file), layout);
}

TEST(CommandLine, LayoutFileCountsAsTheGeneratorThatWroteIt) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("pack.json");
  const json generated = run_marble("layout " + kPack + "--json --out " + file).json();
  const json read = run_marble("layout " + file + " --json").json();
  for (const char* key : {"tokens", "samples", "spans", "legal_pairs", "tokens_by_mode", "digest"}) {
    EXPECT_EQ(generated[key], read[key]) << key;
  }
}

TEST(CommandLine, PlanDocumentHasTheStableFields) {
  const CommandResult result = run_marble("plan " + kPack + "--ring 4 --placement ptrr --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json plan = result.json();
  for (const char* key : {"tokens", "samples", "spans", "legal_pairs", "tokens_by_mode"}) {
    EXPECT_TRUE(plan["layout"].contains(key)) << key;
  }
  EXPECT_EQ(plan["mesh"]["ring"], 4);
  EXPECT_EQ(plan["mesh"]["ulysses"], 1);
  EXPECT_EQ(plan["placement"], "ptrr");
  EXPECT_TRUE(plan["canonical"].is_string());
  EXPECT_TRUE(plan["strategy"].is_string());
  EXPECT_GE(plan["planning_ms"].get<double>(), 0.0);
  for (const char* key : {"busiest_over_mean", "step_busiest_over_mean", "busiest_over_mean_pairs"}) {
    EXPECT_GE(plan["balance"][key].get<double>(), 1.0) << key;
  }
  for (const char* key : {"kv_tokens", "ring_kv_tokens", "allgather_kv_tokens"}) {
    EXPECT_GE(plan["exchange"][key].get<std::int64_t>(), 0) << key;
  }
  EXPECT_GT(plan["memory_bytes"].get<std::int64_t>(), 0);
  ASSERT_EQ(plan["rungs"].size(), 3U);
  EXPECT_EQ(plan["rungs"][0]["rung"], "copy");
  EXPECT_TRUE(plan["rungs"][0]["needs"].is_string());
}

TEST(CommandLine, PlanSaysWhichRungsItsNodesAllow) {
  const CommandResult one_node = run_marble("plan " + kPack + "--ring 4 --placement ptrr");
  EXPECT_THAT(one_node.out, HasSubstr("between 4 ranks on 1 node;"));
  EXPECT_THAT(one_node.out, HasSubstr("  copy      needs peer access"));
  const CommandResult two_nodes = run_marble("plan " + kPack + "--ring 4 --ranks-per-node 2 --placement ptrr");
  EXPECT_THAT(two_nodes.out, HasSubstr("between 4 ranks on 2 nodes;"));
  EXPECT_THAT(two_nodes.out, testing::Not(HasSubstr("  copy ")));
  EXPECT_THAT(two_nodes.out, HasSubstr("  put       needs NCCL 2.29.2 or newer"));
  EXPECT_THAT(two_nodes.out, HasSubstr("  sendrecv  needs NCCL 2.14"));
  EXPECT_THAT(run_marble("plan " + kPack + "--placement ptrr").out, testing::Not(HasSubstr("rungs")));
}

TEST(CommandLine, PlanHasOneEntryPerLayerKindOfTheModel) {
  const json plan = run_marble("plan " + kPack + "--ring 2 --json").json();
  const GeneratorInfo& info = generator("gemma3-docs");
  ASSERT_EQ(plan["layers"].size(), info.layers.size());
  for (std::size_t i = 0; i < info.layers.size(); ++i) {
    EXPECT_EQ(plan["layers"][i]["window"], info.layers[i].window);
    EXPECT_EQ(plan["layers"][i]["count"], info.layers[i].count);
    EXPECT_EQ(plan["layers"][i]["heads"], info.heads);
    EXPECT_TRUE(plan["layers"][i]["strategy"].is_string());
  }
}

TEST(CommandLine, WorkOfThePlansStepsIsTheLayoutsLegalPairs) {
  const json plan = run_marble("plan " + kPack + "--ring 3 --layers 1 --json").json();
  std::int64_t pairs = 0;
  for (const auto& step : plan["steps"]) {
    EXPECT_EQ(step["work"].size(), 3U);
    for (const auto& work : step["work"]) pairs += work.get<std::int64_t>();
  }
  EXPECT_EQ(plan["layout"]["legal_pairs"], pairs);
}

TEST(CommandLine, WindowFlagReplacesTheModelsLayerKinds) {
  const json plan = run_marble("plan " + kPack + "--ring 2 --window 256 --clamp --json").json();
  ASSERT_EQ(plan["layers"].size(), 1U);
  EXPECT_EQ(plan["layers"][0]["window"], 256);
  EXPECT_EQ(plan["layers"][0]["clamp"], true);
  EXPECT_EQ(plan["layers"][0]["count"], 62);
}

TEST(CommandLine, VerifyPassesAndReportsEveryTensor) {
  const CommandResult result = run_marble("verify " + kPack + kSmallModel + "--ring 3 --dtype bf16 --json");
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  const json document = result.json();
  EXPECT_EQ(document["pass"], true);
  for (const char* tensor : {"out", "dq", "dk", "dv"}) {
    EXPECT_LE(document["errors"][tensor]["ratio"].get<double>(), 1.02) << tensor;
    EXPECT_GT(document["errors"][tensor]["error"].get<double>(), 0.0) << tensor;
    EXPECT_TRUE(document["errors"][tensor].contains("single_rank_error")) << tensor;
  }
  EXPECT_GE(document["lse_error"].get<double>(), 0.0);
  EXPECT_EQ(document["layers"].size(), 2U);
  EXPECT_EQ(document["ran"], document["planned"]);
  EXPECT_GT(document["ran"]["tiles"].get<std::int64_t>(), 0);
}

TEST(CommandLine, VerifyForwardOnlyLeavesOutTheGradients) {
  const CommandResult result = run_marble("verify " + kPack + "--heads 2/1 --dim 16 --layers 1 --forward-only --json");
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(result.json()["errors"].size(), 1U);
}

TEST(CommandLine, VerifyTextEndsWithTheVerdictAndDrawsNoBarOffATerminal) {
  const CommandResult result = run_marble("verify " + kPack + "--heads 2/1 --dim 16 --layers 1 --ring 2");
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(result.out.ends_with("\nPASS\n")) << result.out;
  EXPECT_EQ(result.err, "");
}

TEST(CommandLine, VerifyWritesATraceOfTheDistributedRun) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("trace.json");
  ASSERT_EQ(run_marble("verify " + kPack + "--heads 2/1 --dim 16 --layers 1 --ring 2 --trace " + file).code, 0);
  std::vector<int> passes(2, 0);
  const json trace = json::parse(scratch.read("trace.json"));
  for (const json& event : trace["traceEvents"])
    if (event.value("cat", "") == "pass") ++passes.at(event["pid"].get<std::size_t>());
  EXPECT_EQ(passes, (std::vector<int>{2, 2}));  // the run on one rank is not in it
}

TEST(CommandLine, VerifyRunsThePlanThatPlanWrote) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("pack.plan");
  ASSERT_EQ(run_marble("plan " + kPack + kSmallModel + "--ring 2 --placement zigzag --out " + file).code, 0);
  const CommandResult result = run_marble("verify " + kPack + "--plan " + file + " --json");
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(result.json()["mesh"]["ring"], 2);
  EXPECT_EQ(result.json()["head_dim"], 32);
}

}  // namespace
}  // namespace marble::test

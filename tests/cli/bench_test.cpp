// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// `marble bench` on the CPU.

#include "cli/run_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace marble::test {
namespace {

using nlohmann::json;

const std::string kPack = "bench gemma3-docs --tokens 3000 --seed 1 --heads 4/2 --dim 32 ";
const std::string kBench = kPack + "--repeats 2 --warm-up 1 ";

TEST(BenchCommand, EveryLayerKindHasItsTimesAndItsParts) {
  const CommandResult result = run_marble(kBench + "--ring 2 --strategy ring --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const json document = result.json();
  ASSERT_EQ(document["layers"].size(), 2U);
  for (const char* key : {"machine", "commit", "backend", "transport", "placement", "dtype"})
    EXPECT_FALSE(document[key].get<std::string>().empty()) << key;
  for (const json& layer : document["layers"]) {
    double sum = 0.0;
    for (const char* name : {"forward", "backward"}) {
      const json& pass = layer[name];
      for (const char* key : {"layer_ms", "compute_ms", "communication_ms", "tflops"})
        EXPECT_GT(pass[key].get<double>(), 0.0) << name << " " << key;
      const double longer = std::max(pass["compute_ms"].get<double>(), pass["communication_ms"].get<double>());
      EXPECT_NEAR(pass["layer_over_longer"].get<double>(), pass["layer_ms"].get<double>() / longer, 1e-9);
      sum += pass["layer_ms"].get<double>();
    }
    EXPECT_GT(layer["both"]["layer_ms"].get<double>(), sum / 4);
  }
}

TEST(BenchCommand, CountsTheBytesThatThePlanMoves) {
  const json document = run_marble(kBench + "--ring 3 --strategy ring --layers 1 --json").json();
  const json& layer = document["layers"][0];
  const std::int64_t token = 2 * 2 * 32 * 2;  // k and v, two heads of 32, bf16
  const std::int64_t tokens = layer["exchange"]["kv_tokens"];
  EXPECT_EQ(tokens, 2 * 3000);
  EXPECT_EQ(layer["forward"]["received_bytes"], tokens * token);
  EXPECT_EQ(layer["backward"]["received_bytes"], tokens * token * 3);  // and dk and dv in fp32
}

TEST(BenchCommand, MemoryIsWhatThePlannerPredicts) {
  const json document = run_marble(kBench + "--ring 4 --strategy alltoall --json").json();
  for (const json& layer : document["layers"]) {
    const double taken = layer["memory"]["bytes"], planned = layer["memory"]["planned_bytes"];
    EXPECT_NEAR(taken / planned, 1.0, 0.02);
    EXPECT_LT(layer["memory"]["workspace_bytes"].get<double>(), taken);
    EXPECT_EQ(layer["memory"]["gathered_keys_bytes"], 3000 * 2 * 2 * 32 * (2 + 4));
  }
}

TEST(BenchCommand, ForwardOnlyLeavesOutTheGradients) {
  const json layer = run_marble(kBench + "--layers 1 --forward-only --json").json()["layers"][0];
  EXPECT_FALSE(layer.contains("backward"));
  EXPECT_FALSE(layer.contains("both"));
  EXPECT_EQ(layer["forward"]["received_bytes"], 0);
}

TEST(BenchCommand, TextNamesTheRunAndEachPass) {
  const CommandResult result = run_marble(kBench + "--ring 2 --ulysses 2 --layers 1");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"ring 2 x ulysses 2", "cpu backend, local transport", "forward", "backward", "both",
                           "an all-gather of all keys receives"})
    EXPECT_THAT(result.out, testing::HasSubstr(part));
}

TEST(BenchCommand, WritesATraceOfAllRanksAndLayerKinds) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("trace.json");
  ASSERT_EQ(run_marble(kBench + "--ring 2 --trace " + file).code, 0);
  const json trace = json::parse(scratch.read("trace.json"));
  for (int rank : {0, 1})
    for (const char* pass : {"layer 0 forward", "layer 0 backward", "layer 1 forward", "layer 1 backward"})
      EXPECT_EQ(std::count_if(trace["traceEvents"].begin(), trace["traceEvents"].end(),
                              [&](const json& event) { return event["pid"] == rank && event["name"] == pass; }),
                1)
          << pass;
}

struct Refusal {
  const char* flags;
  const char* says;
};

class BenchRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(BenchRefuses, InOneLineBeforeAnyWork) {
  const CommandResult result = run_marble(kPack + GetParam().flags);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, testing::StartsWith("marble: error: "));
  EXPECT_THAT(result.err, testing::HasSubstr(GetParam().says));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

INSTANTIATE_TEST_SUITE_P(Flags, BenchRefuses,
                         testing::Values(Refusal{"--backend tpu", "unknown backend 'tpu'; use cpu or cuda"},
                                         Refusal{"--transport tcp", "unknown transport 'tcp'; use local, mpi or nccl"},
                                         Refusal{"--transport nccl", "use --backend cuda"},
                                         Refusal{"--dtype int8", "int8"}, Refusal{"--ring 0", "0"},
                                         Refusal{"--repeats 0", "--repeats 0 is not positive"},
                                         Refusal{"--trace /nowhere/trace.json", "cannot write '/nowhere/trace.json'"},
                                         Refusal{"--warm-up 0", "--warm-up 0 is not positive"},
                                         Refusal{"--softcap -1", "softcap"}));

}  // namespace
}  // namespace marble::test

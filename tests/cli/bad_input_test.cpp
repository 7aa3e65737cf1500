// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Whatever is wrong with the input, the user sees one line that names the value, a non-zero exit code, no output and no
// file.

#include "cli/run_command.hpp"

#include "marble/cuda.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace marble::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kPack = "gemma3-docs --tokens 3000 --seed 1 ";

void expect_error(const std::string& arguments, int code, const std::string& named) {
  const CommandResult result = run_marble(arguments);
  EXPECT_EQ(result.code, code) << arguments << "\n" << result.err;
  EXPECT_EQ(result.out, "") << arguments;
  EXPECT_THAT(result.err, StartsWith("marble: error: ")) << arguments;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << arguments << "\n" << result.err;
  EXPECT_THAT(result.err, HasSubstr(named)) << arguments;
}

std::string layout_text(const std::string& spans) {
  return R"({"marble_layout": 1, "samples": [[)" + spans + "]]}";
}

TEST(BadInput, UnknownModeInALayoutFile) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("pack.json", layout_text(R"(["diagonal", 5])"));
  for (const char* command : {"layout ", "plan ", "verify "}) expect_error(command + file, 1, "diagonal");
}

TEST(BadInput, NegativeLength) {
  const ScratchFolder scratch;
  expect_error("plan " + scratch.write("pack.json", layout_text(R"(["causal", -7])")), 1, "-7");
}

TEST(BadInput, OverflowingLength) {
  const ScratchFolder scratch;
  expect_error("plan " + scratch.write("a.json", layout_text(R"(["causal", 99999999999999999999])")), 1, "1e+20");
  expect_error("plan " + scratch.write("b.json", layout_text(R"(["causal", 1099511627776], ["causal", 1])")), 1,
               "2^40");
}

TEST(BadInput, LayoutFileThatIsMissingOrNoLayout) {
  const ScratchFolder scratch;
  expect_error("plan " + scratch.path("absent.json"), 1, "absent.json");
  expect_error("plan " + scratch.write("torn.json", R"({"marble_layout": 1, "samples": [[["caus)"), 1, "torn.json");
  expect_error("plan " + scratch.write("later.json", R"({"marble_layout": 9, "samples": []})"), 1, "9");
}

TEST(BadInput, HeadCountsThatDoNotDivide) {
  expect_error("plan " + kPack + "--heads 7/2", 1, "7");
  expect_error("verify " + kPack + "--heads 7/2 --dim 16", 1, "7");
  expect_error("plan " + kPack + "--heads 0/1", 1, "0");
}

TEST(BadInput, FewerThanOneRank) {
  expect_error("plan " + kPack + "--ring 0", 1, "0");
  expect_error("plan " + kPack + "--ring -2", 1, "-2");
  expect_error("verify " + kPack + "--ring 0", 1, "0");
}

TEST(BadInput, UnknownGenerator) {
  expect_error("layout gemma9-docs --tokens 3000", 1, "gemma9-docs");
}

TEST(BadInput, UnknownParameterOfAGenerator) {
  expect_error("layout " + kPack + "--set colour=blue", 1, "colour");
}

TEST(BadInput, TokensThatCannotBeGenerated) {
  expect_error("layout gemma3-docs --tokens -5", 1, "-5");
  expect_error("layout gemma3-docs --tokens 1", 1, "1");
  expect_error("layout gemma3-docs --tokens 99999999999999999999", 2, "99999999999999999999");
  expect_error("layout " + kPack + "--seed -1", 2, "-1");
}

TEST(BadInput, NamesThatAFlagDoesNotTake) {
  expect_error("plan " + kPack + "--placement spiral", 1, "spiral");
  expect_error("plan " + kPack + "--strategy gossip", 1, "gossip");
  expect_error("plan " + kPack + "--canonical shuffled", 1, "shuffled");
  expect_error("plan " + kPack + "--dtype fp8", 1, "fp8");
  expect_error("verify " + kPack + "--dtype fp8", 1, "fp8");
  expect_error("verify " + kPack + "--backend abacus", 1, "abacus");
  expect_error("verify " + kPack + "--transport pigeon", 1, "pigeon");
}

TEST(BadInput, ABackendWithoutItsDevice) {
  if (cuda_available()) GTEST_SKIP() << "this machine has a GPU";
  expect_error("verify " + kPack + "--backend cuda", 1, "backend cuda needs a build with CUDA and a GPU");
}

TEST(BadInput, UsageErrorsExitWithTwo) {
  expect_error("", 2, "command");
  expect_error("paint " + kPack, 2, "paint");
  expect_error("plan", 2, "layout");
  expect_error("plan gemma3-docs", 2, "--tokens");
  expect_error("plan " + kPack + "--ring four", 2, "four");
  expect_error("plan " + kPack + "--heads 8:4", 2, "8:4");
  expect_error("plan " + kPack + "--layers 10,x", 2, "x");
  expect_error("plan " + kPack + "--layers 10 --window 5", 2, "--window");
  expect_error("layout " + kPack + "--set colour", 2, "colour");
}

TEST(BadInput, ImpossibleWindow) {
  expect_error("plan " + kPack + "--window -3", 1, "-3");
  expect_error("plan " + kPack + "--layers 1 --clamp", 1, "--clamp");
}

TEST(BadInput, HeadDimensionThatTheBackendDoesNotCover) {
  expect_error("verify " + kPack + "--heads 1 --dim 257", 1, "257");
  expect_error("verify " + kPack + "--heads 1 --dim 0", 1, "0");
}

TEST(BadInput, PlanForAnotherLayout) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("pack.plan");
  ASSERT_EQ(run_marble("plan " + kPack + "--heads 2 --dim 16 --layers 1 --ring 2 --out " + file).code, 0);
  expect_error("verify gemma3-docs --tokens 3000 --seed 2 --plan " + file, 1, "layout");
}

TEST(BadInput, TruncatedOrAlteredPlanFile) {
  const ScratchFolder scratch;
  const std::string file = scratch.path("pack.plan");
  ASSERT_EQ(run_marble("plan " + kPack + "--heads 2 --dim 16 --layers 1 --ring 2 --out " + file).code, 0);
  const std::string bytes = scratch.read("pack.plan");
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string torn = scratch.write("torn.plan", bytes.substr(0, length));
    expect_error("verify " + kPack + "--plan " + torn, 1, "plan");
  }
  for (const std::size_t at : {std::size_t{0}, bytes.size() / 3, bytes.size() - 1}) {
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x10);
    expect_error("verify " + kPack + "--plan " + scratch.write("altered.plan", altered), 1, "plan");
  }
  expect_error("verify " + kPack + "--plan " + scratch.path("absent.plan"), 1, "absent.plan");
}

TEST(BadInput, LeavesNoOutputFile) {
  const ScratchFolder scratch;
  const std::string out = " --out " + scratch.path("out");
  expect_error("layout gemma9-docs --tokens 3000" + out, 1, "gemma9-docs");
  expect_error("plan " + kPack + "--ring 0" + out, 1, "0");
  expect_error("plan " + kPack + "--heads 7/2" + out, 1, "7");
  EXPECT_TRUE(scratch.empty());
}

TEST(BadInput, OutputThatCannotBeWritten) {
  const ScratchFolder scratch;
  const std::string out = " --out " + scratch.path("no/such/folder/file");
  expect_error("layout " + kPack + out, 1, "no/such/folder/file");
  expect_error("plan " + kPack + out, 1, "no/such/folder/file");
  EXPECT_TRUE(scratch.empty());
}

}  // namespace
}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace marble {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Errors, AreFrobeniusNormsRelativeToTheTruth) {
  const std::vector<double> truth = {3.0, 4.0};
  EXPECT_DOUBLE_EQ(relative_error(std::vector<float>{3.0F, 4.5F}, truth, 1.0), 0.1);
  EXPECT_EQ(relative_error(std::vector<float>{3.0F, 4.0F}, truth, 1.0), 0.0);
}

TEST(Errors, ATruthOfZeroIsMeasuredByItsNaturalSize) {
  const std::vector<double> truth = {1e-16, 0.0};
  EXPECT_NEAR(relative_error(std::vector<float>{1e-7F, 0.0F}, truth, 2.0), 0.5e-7, 1e-12);
}

TEST(Errors, RoundingOnceIsHalfAnUlpAtMost) {
  const std::vector<double> truth = {1.0 + 1.0 / 256};  // between two bf16 values
  EXPECT_NEAR(rounding_error<double>(truth, truth, DType::bf16, 1.0), 1.0 / 257, 1e-9);
}

TEST(Errors, LseMatchesInfinityOnlyWithInfinity) {
  const std::vector<double> truth = {1.0, -kInfinity};
  EXPECT_EQ(largest_difference(std::vector<float>{1.0F, -std::numeric_limits<float>::infinity()}, truth), 0.0);
  EXPECT_EQ(largest_difference(std::vector<float>{1.0F, -100.0F}, truth), kInfinity);
  EXPECT_EQ(largest_difference(std::vector<float>{kNaN, -std::numeric_limits<float>::infinity()}, truth), kInfinity);
}

/// A verdict on one element per tensor.
VerifyResult verdict(float distributed, float single, double truth, DType dtype, bool rounds_products = false) {
  const auto run = [&](float value) {
    RunResult result;
    result.rounds_products = rounds_products;
    result.out = result.dq = result.dk = result.dv = {value};
    result.lse = {0.0F};
    return result;
  };
  DenseResult dense;
  dense.out = dense.dq = dense.dk = dense.dv = {truth};
  dense.dq_stored = dense.dk_stored = {static_cast<float>(truth)};
  dense.lse = {0.0};
  VerifyResult result;
  VerifyOptions options;
  options.dtype = dtype;
  options.attention.softmax_scale = 1.0;
  judge(run(distributed), run(single), dense, {{1.0F}, {1.0F}, {1.0F}, {1.0F}}, options, result);
  return result;
}

TEST(Verdict, PassesWhenBothRunsRoundOnce) {
  const double truth = 1.0 + 1.0 / 512;  // half way between two bf16 values
  const VerifyResult result = verdict(1.0F, 1.0F, truth, DType::bf16);
  EXPECT_TRUE(result.pass) << testing::PrintToString(result.failures);
  EXPECT_EQ(result.out.ratio, 1.0);
}

TEST(Verdict, FailsOnARatioOverTheBound) {
  const double truth = 1.0 + 1.0 / 512;
  const VerifyResult result = verdict(1.0F - 1.0F / 256, 1.0F, truth, DType::bf16);
  EXPECT_FALSE(result.pass);
  EXPECT_THAT(result.failures, testing::Contains(testing::HasSubstr("out: error")));
}

TEST(Verdict, FailsWhenOneRankIsWorseThanRounding) {
  const double truth = 1.0 + 1.0 / 512;
  const VerifyResult result = verdict(1.0F - 1.0F / 256, 1.0F - 1.0F / 256, truth, DType::bf16);
  EXPECT_EQ(result.out.ratio, 1.0);
  EXPECT_FALSE(result.pass);
}

TEST(Verdict, LetsRoundedProductsAddOneRoundoff) {
  const double truth = 1.0 + 1.0 / 512;
  const float off_by_one_more = 1.0F - 1.0F / 512;
  EXPECT_FALSE(verdict(off_by_one_more, off_by_one_more, truth, DType::bf16).pass);
  EXPECT_TRUE(verdict(off_by_one_more, off_by_one_more, truth, DType::bf16, true).pass);
  EXPECT_FALSE(verdict(1.0F - 1.0F / 128, 1.0F - 1.0F / 128, truth, DType::bf16, true).pass);
}

TEST(Verdict, FailsOnNaN) {
  EXPECT_FALSE(verdict(kNaN, 1.0F, 1.0, DType::bf16).pass);
  EXPECT_FALSE(verdict(kNaN, 1.0F, 1.0, DType::fp32).pass);
  EXPECT_FALSE(verdict(1.0F, kNaN, 1.0, DType::fp32).pass);
}

TEST(Verdict, JudgesFp32ByAbsoluteBounds) {
  EXPECT_TRUE(verdict(1.000001F, 1.0F, 1.0, DType::fp32).pass);
  EXPECT_FALSE(verdict(1.0001F, 1.0F, 1.0, DType::fp32).pass);
}

}  // namespace
}  // namespace marble

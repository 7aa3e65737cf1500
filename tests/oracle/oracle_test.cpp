// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "oracle/dense.hpp"

#include <gtest/gtest.h>

#include <random>

namespace marble::oracle {
namespace {

TokenTracks causal_token(std::int64_t position) {
  return {0, -1, -1, position};
}

/// Three causal tokens, one head of dimension 1.
DenseProblem three_tokens() {
  DenseProblem problem;
  for (std::int64_t i = 0; i < 3; ++i) problem.queries.push_back(causal_token(i));
  problem.keys = problem.queries;
  return problem;
}

TEST(Oracle, AveragesValuesWhenScoresAreEqual) {
  const DenseForward result = dense_forward(three_tokens(), {0, 0, 0}, {5, -7, 9}, {3, 6, 12});
  EXPECT_EQ(result.out, (std::vector<double>{3, 4.5, 7}));
  EXPECT_DOUBLE_EQ(result.lse[0], 0.0);
  EXPECT_DOUBLE_EQ(result.lse[1], std::log(2.0));
  EXPECT_DOUBLE_EQ(result.lse[2], std::log(3.0));
}

TEST(Oracle, WeighsByTheExponentOfScaledScores) {
  DenseProblem problem = three_tokens();
  problem.scale = 2.0;
  const double log3 = std::log(3.0);
  // Scores of the second row: 0 and log 3, so weights 1/4 and 3/4.
  const DenseForward result = dense_forward(problem, {0, 1, 0}, {0, log3 / 2, 0}, {8, 4, 0});
  EXPECT_DOUBLE_EQ(result.out[1], 5.0);
  EXPECT_DOUBLE_EQ(result.lse[1], std::log(4.0));
}

TEST(Oracle, BendsScoresBySoftcap) {
  DenseProblem problem = three_tokens();
  problem.softcap = 1.0;
  const DenseForward result = dense_forward(problem, {100, 0, 0}, {1, 1, 1}, {1, 1, 1});
  EXPECT_DOUBLE_EQ(result.lse[0], 1.0);  // tanh(100) is 1
}

TEST(Oracle, GivesZerosAndMinusInfinityToARowWithoutKeys) {
  DenseProblem problem = three_tokens();
  problem.queries[0].sample = 7;
  const DenseForward forward = dense_forward(problem, {1, 1, 1}, {1, 1, 1}, {1, 1, 1});
  EXPECT_EQ(forward.out[0], 0.0);
  EXPECT_EQ(forward.lse[0], -std::numeric_limits<double>::infinity());
  const DenseBackward backward = dense_backward(problem, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, forward);
  EXPECT_EQ(backward.dq[0], 0.0);
}

TEST(Oracle, SplitsTheGradientOfTwoEqualKeysByHand) {
  // Row 1 averages v = (2, 6): p = 1/2 each, out = 4. With dout = 1: dv = p, dS = p (v - out) = (-1, 1).
  DenseProblem problem = three_tokens();
  problem.queries.resize(2);
  problem.keys.resize(2);
  problem.scale = 3.0;
  const std::vector<double> q = {0, 0}, k = {1, 2}, v = {2, 6}, dout = {0, 1};
  const DenseBackward result = dense_backward(problem, q, k, v, dout, dense_forward(problem, {0, 0}, {0, 0}, v));
  // Scores are 3 * 0 * k = 0. dq = 3 * (-1 * 1 + 1 * 2) = 3; dk = 3 * dS * q = 0.
  EXPECT_DOUBLE_EQ(result.dq[0], 0.0);
  EXPECT_DOUBLE_EQ(result.dq[1], 3.0);
  EXPECT_DOUBLE_EQ(result.dk[0], 0.0);
  EXPECT_DOUBLE_EQ(result.dv[0], 0.5);
  EXPECT_DOUBLE_EQ(result.dv[1], 0.5);
}

TEST(Oracle, HasGradientsThatFiniteDifferencesConfirm) {
  DenseProblem problem;
  problem.queries = {{0, -1, -1, 0}, {0, 5, -1, 1}, {0, 5, -1, 2}, {0, -1, 3, 3}, {1, -1, -1, 4}};
  problem.keys = problem.queries;
  problem.kv_heads = 2;
  problem.head_map = {0, 1, 0};
  problem.dim = 3;
  problem.scale = 0.6;
  problem.softcap = 1.5;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::size_t count) {
    std::vector<double> values(count);
    for (double& value : values) value = normal(random);
    return values;
  };
  std::vector<double> q = draw(45), k = draw(30), v = draw(30);
  const std::vector<double> dout = draw(45);
  const DenseBackward gradients = dense_backward(problem, q, k, v, dout, dense_forward(problem, q, k, v));
  const auto loss = [&] { return dot(dense_forward(problem, q, k, v).out.data(), dout.data(), 45); };
  const auto confirm = [&](std::vector<double>& input, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double at = input[i];
      input[i] = at + 1e-5;
      const double above = loss();
      input[i] = at - 1e-5;
      const double below = loss();
      input[i] = at;
      EXPECT_NEAR((above - below) / 2e-5, gradient[i], 1e-8);
    }
  };
  confirm(q, gradients.dq);
  confirm(k, gradients.dk);
  confirm(v, gradients.dv);
}

}  // namespace
}  // namespace marble::oracle

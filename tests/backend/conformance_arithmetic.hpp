// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Part of the conformance suite: shapes, dtypes, options, and what must not change a bit.

#include "backend/backend_conformance.hpp"

#include <random>

namespace marble::testing {

TEST_P(BackendConformance, CoversOrRefusesEachHeadDimensionAndDtype) {
  for (std::int32_t dim : {1, 7, 64, 80, 128, 256})
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << dim << ' ' << to_string(dtype));
      AttentionCase problem = mixed_case();
      set_dim(problem, dim);
      problem.dtype = dtype;
      check(problem);
    }
}

TEST_P(BackendConformance, SharesKeyHeadsAmongQueryHeads) {
  const std::pair<std::int32_t, std::int32_t> ratios[] = {{4, 4}, {4, 1}, {14, 2}, {16, 1}, {28, 4}, {24, 4}};
  for (const auto& [heads, kv_heads] : ratios) {
    SCOPED_TRACE(::testing::Message() << heads << '/' << kv_heads);
    AttentionCase problem = make_case(layout({{{Mode::causal, 11}, {Mode::full, 9}}, {{Mode::causal, 13}}}));
    set_heads(problem, heads, kv_heads);
    check(problem);
  }
}

TEST_P(BackendConformance, FollowsAnIrregularHeadMap) {
  AttentionCase problem = mixed_case();
  problem.spec.kv_heads = 4;
  problem.spec.head_map = {3, 0, 3, 3, 1};  // key head 2 is read by nobody: zero gradients
  check(problem);
}

TEST_P(BackendConformance, TakesAnyRowAndHeadStrides) {
  for (Strides strides : {Strides::gaps, Strides::heads_outermost})
    for (DType dtype : {DType::fp32, DType::bf16}) {
      AttentionCase problem = mixed_case();
      set_heads(problem, 4, 2);
      problem.strides = strides;
      problem.dtype = dtype;
      check(split_works(problem, 2, block() / 2 + 1));
    }
}

TEST_P(BackendConformance, AppliesSoftcapAndSoftmaxScale) {
  for (double softcap : {0.0, 1.5, 30.0})
    for (double scale : {0.02, 0.1, 0.3}) {
      SCOPED_TRACE(::testing::Message() << "softcap " << softcap << " scale " << scale);
      AttentionCase problem = mixed_case();
      problem.options = {scale, softcap};
      check(problem);
    }
}

TEST_P(BackendConformance, KeepsRowsWhoseScoresGrowOrSpread) {
  // Keys in ascending size: the running max moves at every block; and a row whose scores span hundreds.
  AttentionCase problem = make_case(layout({{{Mode::causal, 64}}}));
  AttentionInputs inputs = make_inputs(problem);
  const auto dim = static_cast<std::size_t>(problem.spec.head_dim);
  for (std::size_t i = 0; i < inputs.k.size(); ++i)
    inputs.k[i] *= 40.0 * static_cast<double>(i / dim) / static_cast<double>(problem.spec.tokens.size());
  inputs.k = rounded(inputs.k, problem.dtype);
  const AttentionResult result = run_attention(*backend(), problem, inputs);
  const AttentionResult exact = run_oracle(problem, inputs, result.out);
  // Scores reach some 200 here, and their rounding grows with them.
  const double scores = Tolerance().fp32_relative * largest_size(exact.lse);
  EXPECT_LE(relative_error(result.out, exact.out), scores + 2 * unit_roundoff(problem.dtype));
  EXPECT_LE(max_error(result.lse, exact.lse), scores);
}

TEST_P(BackendConformance, GivesTheSameBitsInOneWorkAndInMany) {
  for (DType dtype : {DType::fp32, DType::bf16}) {
    if (!GetParam().covers(dtype, GetParam().head_dim)) continue;
    AttentionCase one = mixed_case();
    one.dtype = dtype;
    set_heads(one, 2, 1);
    const AttentionInputs inputs = make_inputs(one);
    const AttentionResult whole = run_attention(*backend(), one, inputs);
    const auto keys = static_cast<std::int64_t>(one.spec.works[0].size());
    for (std::int64_t blocks_per_work : {1, 2, 3}) {
      const std::int64_t granule = blocks_per_work * block();
      const AttentionCase many = split_works(one, (keys + granule - 1) / granule, granule);
      const AttentionResult parts = run_attention(*backend(), many, inputs);
      EXPECT_EQ(parts.out, whole.out);
      EXPECT_EQ(parts.lse, whole.lse);
      EXPECT_EQ(parts.tiles, whole.tiles);
      // dK and dV of a key block are sums over its query blocks alone; dQ adds the works in their own order.
      EXPECT_EQ(parts.dk, whole.dk);
      EXPECT_EQ(parts.dv, whole.dv);
      compare(many, parts, run_oracle(many, inputs, parts.out));
    }
  }
}

TEST_P(BackendConformance, GivesTheSameBitsHoweverFullBlocksInARowAreCut) {
  // A backend may take several full blocks at a time: rows of ten of them, then of one to eight, and a partial one.
  AttentionCase one =
      make_case(layout_from_samples(std::vector<std::vector<Span>>{{{Mode::full, 10 * block() + block() / 2}}}));
  const AttentionInputs inputs = make_inputs(one);
  const AttentionResult whole = run_attention(*backend(), one, inputs);
  compare(one, whole, run_oracle(one, inputs, whole.out));
  for (std::int64_t blocks_per_work : {1, 2, 3, 4, 5, 6, 8}) {
    const std::int64_t granule = blocks_per_work * block();
    const AttentionCase many = split_works(one, (11 * block() + granule - 1) / granule, granule);
    const AttentionResult parts = run_attention(*backend(), many, inputs);
    EXPECT_EQ(parts.out, whole.out) << blocks_per_work << " blocks a work";
    EXPECT_EQ(parts.lse, whole.lse) << blocks_per_work << " blocks a work";
  }
}

TEST_P(BackendConformance, GivesTheSameBitsWithAnyNumberOfThreadsAndAgain) {
  AttentionCase problem = mixed_case();
  set_heads(problem, 6, 2);
  problem = split_works(problem, 2, block());
  const AttentionInputs inputs = make_inputs(problem);
  const std::unique_ptr<Backend> alone = backend(1);
  const AttentionResult first = run_attention(*alone, problem, inputs);
  const AttentionResult exact = run_oracle(problem, inputs, first.out);
  const auto expect_first = [&](AttentionResult again) {
    compare(problem, again, exact);
    if (!GetParam().orders_dq) again.dq = first.dq;
    EXPECT_EQ(again, first);
  };
  expect_first(run_attention(*alone, problem, inputs));
  for (int threads : {2, 5}) expect_first(run_attention(*backend(threads), problem, inputs));
}

TEST_P(BackendConformance, AddsIntoKeyGradients) {
  AttentionCase problem = mixed_case();
  const AttentionInputs inputs = make_inputs(problem);
  const AttentionResult from_zero = run_attention(*backend(), problem, inputs);
  problem.gradient_start = 1.0;
  const AttentionResult from_one = run_attention(*backend(), problem, inputs);
  for (const auto& [sum, part] : {std::pair{&from_one.dk, &from_zero.dk}, {&from_one.dv, &from_zero.dv}})
    for (std::size_t i = 0; i < sum->size(); ++i)
      EXPECT_NEAR((*sum)[i], (*part)[i] + 1.0, 4 * unit_roundoff(DType::fp32) * (1.0 + std::abs((*part)[i])));
}

TEST_P(BackendConformance, HasGradientsThatFiniteDifferencesConfirm) {
  if (GetParam().dtype != DType::fp32)
    GTEST_SKIP() << "16-bit outputs round more than differences show; the oracle's gradients stand in for them";
  AttentionCase problem = make_case(layout({{{Mode::causal, 4}, {Mode::full, 3}, {Mode::noise, 2}}}));
  problem.options.softcap = 2.0;
  const AttentionInputs inputs = make_inputs(problem);
  const AttentionResult result = run_attention(*backend(), problem, inputs);
  const auto loss = [&](const AttentionInputs& at) {
    const AttentionResult there = run_attention(*backend(), problem, at);
    return oracle::dot(there.out.data(), inputs.dout.data(), static_cast<std::int32_t>(there.out.size()));
  };
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  // Third derivatives leave some step^2, rounding some u / step.
  const double step = 0x1p-7;
  const double bound = 4 * step * step + 64 * unit_roundoff(problem.dtype) / step;
  const std::pair<std::vector<double> AttentionInputs::*, const std::vector<double>*> gradients[] = {
      {&AttentionInputs::q, &result.dq}, {&AttentionInputs::k, &result.dk}, {&AttentionInputs::v, &result.dv}};
  for (const auto& [input, gradient] : gradients) {
    AttentionInputs above = inputs, below = inputs;
    double slope = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < gradient->size(); ++i) {
      const double direction = normal(random);
      (above.*input)[i] += step * direction;
      (below.*input)[i] -= step * direction;
      slope += (*gradient)[i] * direction;
      norm += (*gradient)[i] * (*gradient)[i];
    }
    EXPECT_NEAR((loss(above) - loss(below)) / (2 * step), slope, bound * std::sqrt(norm));
  }
}

}  // namespace marble::testing

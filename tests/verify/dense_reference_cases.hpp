// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The blocked fp64 reference against the pair-by-pair oracle, on layouts with every mode, wherever it runs:
//   INSTANTIATE_TEST_SUITE_P(Cpu, DenseReference, ::testing::Values(Reference{"cpu", dense_reference}),
//   reference_name);

#include "oracle/dense.hpp"
#include "verify/dense_reference.hpp"
#include "verify/rank_run.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <ostream>
#include <string>

namespace marble {

struct Reference {
  std::string name;
  std::function<DenseResult(const Layout&, const MaskRule&, const HeadShape&, const DenseInputs&, const DenseOptions&)>
      run;
};

inline void PrintTo(const Reference& reference, std::ostream* stream) {
  *stream << reference.name;
}

inline std::string reference_name(const ::testing::TestParamInfo<Reference>& info) {
  return info.param.name;
}

struct Case {
  Layout layout;
  MaskRule rule;
  HeadShape shape;
  double softcap = 0.0;
};

inline Layout all_modes() {
  const std::vector<std::vector<Span>> samples = {
      {{Mode::causal, 30}, {Mode::full, 25}, {Mode::causal, 3}, {Mode::noise, 17}, {Mode::causal, 20}},
      {},
      {{Mode::causal, 1}},
      {{Mode::group, 40},
       {Mode::causal, 9},
       {Mode::group, 21},
       {Mode::branch, 11},
       {Mode::branch, 13},
       {Mode::causal, 5}},
  };
  return layout_from_samples(samples);
}

inline oracle::DenseProblem oracle_problem(const Case& c) {
  oracle::DenseProblem problem;
  const Tracks tracks = to_tracks(c.layout);
  for (std::size_t t = 0; t < tracks.sample.size(); ++t)
    problem.queries.push_back({tracks.sample[t], tracks.segment[t], tracks.noise[t], tracks.position[t]});
  problem.keys = problem.queries;
  problem.rule = c.rule;
  problem.kv_heads = c.shape.kv_heads;
  problem.head_map.clear();
  for (std::int32_t head = 0; head < c.shape.heads; ++head)
    problem.head_map.push_back(head / (c.shape.heads / c.shape.kv_heads));
  problem.dim = c.shape.head_dim;
  problem.scale = 0.3;
  problem.softcap = c.softcap;
  return problem;
}

template <typename A, typename B>
void expect_close(const std::vector<A>& actual, const std::vector<B>& expected, double tolerance, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto value = static_cast<double>(actual[i]);
    const auto truth = static_cast<double>(expected[i]);
    ASSERT_TRUE(value == truth || std::abs(value - truth) <= tolerance)
        << what << " " << i << ": " << value << ", " << truth;
  }
}

class DenseReference : public ::testing::TestWithParam<Reference> {
 protected:
  static void expect_equals_oracle(const Case& c);
};

inline void DenseReference::expect_equals_oracle(const Case& c) {
  const DenseInputs inputs = random_inputs(c.layout.num_tokens(), c.shape, DType::bf16, 3);
  const DenseResult result =
      GetParam().run(c.layout, c.rule, c.shape, inputs,
                     {.attention = {.softmax_scale = 0.3, .softcap = c.softcap}, .dtype = DType::bf16, .threads = 2});
  const oracle::DenseProblem problem = oracle_problem(c);
  const auto wide = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  const auto q = wide(inputs.q), k = wide(inputs.k), v = wide(inputs.v), dout = wide(inputs.dout);
  oracle::DenseForward forward = oracle::dense_forward(problem, q, k, v);
  expect_close(result.out, forward.out, 1e-12, "out");
  expect_close(result.lse, forward.lse, 1e-12, "lse");
  const oracle::DenseBackward backward = oracle::dense_backward(problem, q, k, v, dout, forward);
  expect_close(result.dq, backward.dq, 1e-12, "dq");
  expect_close(result.dk, backward.dk, 1e-12, "dk");
  expect_close(result.dv, backward.dv, 1e-12, "dv");

  std::vector<float> rounded(forward.out.begin(), forward.out.end());
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(rounded[i]);
    const std::uint32_t even = (bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U;
    forward.out[i] = static_cast<double>(std::bit_cast<float>(even));
  }
  const oracle::DenseBackward stored = oracle::dense_backward(problem, q, k, v, dout, forward);
  expect_close(result.dq_stored, stored.dq, 1e-5, "dq of a stored output");
  expect_close(result.dk_stored, stored.dk, 1e-5, "dk of a stored output");
}

TEST_P(DenseReference, EqualsTheOracleOnEveryMode) {
  expect_equals_oracle({all_modes(), {}, {2, 1, 8}});
}
TEST_P(DenseReference, EqualsTheOracleUnderAWindow) {
  expect_equals_oracle({all_modes(), {.window = 12}, {1, 1, 5}});
  expect_equals_oracle({all_modes(), {.window = 12, .clamp = true}, {1, 1, 5}});
}
TEST_P(DenseReference, EqualsTheOracleUnderASoftcap) {
  expect_equals_oracle({all_modes(), {}, {4, 2, 16}, 1.5});
}
TEST_P(DenseReference, TilesEndAnywhere) {
  for (std::int64_t tokens : {1, 63, 64, 65, 129}) {
    const std::vector<std::vector<Span>> samples = {{{Mode::causal, tokens}}};
    expect_equals_oracle({layout_from_samples(samples), {}, {1, 1, 3}});
  }
}

TEST_P(DenseReference, TakesAnyHeadDimension) {
  for (std::int32_t dim : {64, 80, 256}) expect_equals_oracle({all_modes(), {}, {6, 2, dim}});
}

}  // namespace marble

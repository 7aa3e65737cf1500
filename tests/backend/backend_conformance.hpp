// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The conformance suite of the Backend seam. A backend joins with a factory:
//   INSTANTIATE_TEST_SUITE_P(Cpu, BackendConformance, ::testing::Values(BackendFactory{...}), factory_name);
// Every case compares values with the fp64 oracle, forward and backward, in memory that starts as NaN.

#include "backend/attention_case.hpp"
#include "base/numeric.hpp"

#include "marble/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace marble::testing {

/// How a backend is made, and what it must cover; everything else it must refuse.
struct BackendFactory {
  std::string name;
  std::function<std::unique_ptr<Backend>(int num_threads)> make;
  std::function<bool(DType dtype, std::int32_t head_dim)> covers;
  std::vector<std::int32_t> blocks;  // the first serves most cases
  std::int32_t head_dim = 64;        // serves most cases
  DType dtype = DType::fp32;
  bool orders_dq = true;  // sums dQ in the plan's order, so that its bits repeat
};

inline std::string factory_name(const ::testing::TestParamInfo<BackendFactory>& info) {
  return info.param.name;
}

/// Bounds, from the unit roundoff u of fp32 and of the dtype (docs/numerics.md). All arithmetic is fp32: a score of
/// magnitude up to 8 carries some 8 u, exp makes that relative, and sums over d and over keys add a few u more.
/// Results in a 16-bit dtype are cast once, so they may be 1.1 times as far off as the exact result rounded once.
struct Tolerance {
  double fp32_relative = 32 * unit_roundoff(DType::fp32);  // relative Frobenius error; LSE: of max(1, |lse|)
  double over_rounding_once = 1.1;
  // Where products take rounded operands, their errors are independent and of at most u each: a norm's share is below
  // u.
  double rounded_products = 1.0;
};

inline void PrintTo(const BackendFactory& factory, std::ostream* stream) {
  *stream << factory.name;
}

class BackendConformance : public ::testing::TestWithParam<BackendFactory> {
 protected:
  [[nodiscard]] std::int32_t block() const { return GetParam().blocks.front(); }
  /// Lengths in cases are multiples of this, so that spans cross blocks of any size.
  [[nodiscard]] std::int64_t unit() const { return std::max(1, block() / 16); }
  [[nodiscard]] std::unique_ptr<Backend> backend(int threads = 2) const { return GetParam().make(threads); }

  [[nodiscard]] Layout layout(std::vector<std::vector<Span>> samples) const {
    for (std::vector<Span>& sample : samples)
      for (Span& span : sample) span.length *= unit();
    return layout_from_samples(samples);
  }

  [[nodiscard]] AttentionCase make_case(const Layout& pack, Canonical canonical = Canonical::stack,
                                        const MaskRule& rule = {}) const {
    AttentionCase problem = whole_case(pack, canonical, rule, GetParam().head_dim, block());
    problem.dtype = GetParam().dtype;
    return problem;
  }

  /// A pack that holds every mode, over several blocks.
  [[nodiscard]] AttentionCase mixed_case(Canonical canonical = Canonical::stack, const MaskRule& rule = {}) const {
    return make_case(layout({{{Mode::causal, 17}, {Mode::full, 13}, {Mode::noise, 9}, {Mode::causal, 11}},
                             {},
                             {{Mode::group, 7},
                              {Mode::causal, 3},
                              {Mode::group, 12},
                              {Mode::branch, 6},
                              {Mode::branch, 4},
                              {Mode::causal, 8}},
                             {{Mode::causal, 5}}}),
                     canonical, rule);
  }

  static void set_dim(AttentionCase& problem, std::int32_t dim) {
    problem.spec.head_dim = dim;
    problem.options.softmax_scale = 1.0 / std::sqrt(static_cast<double>(dim));
  }

  static void set_heads(AttentionCase& problem, std::int32_t heads, std::int32_t kv_heads) {
    problem.spec.kv_heads = kv_heads;
    problem.spec.head_map.clear();
    for (std::int32_t head = 0; head < heads; ++head) problem.spec.head_map.push_back(head / (heads / kv_heads));
  }

  /// Runs the case and compares it with the oracle; or sees it refused, when the backend does not cover it.
  void check(const AttentionCase& problem) const {
    const std::unique_ptr<Backend> device = backend();
    const std::vector<std::int32_t>& blocks = GetParam().blocks;
    if (!GetParam().covers(problem.dtype, problem.spec.head_dim) ||
        std::find(blocks.begin(), blocks.end(), problem.spec.block) == blocks.end()) {
      EXPECT_THROW(device->check_supported(make_brute_plan(problem.spec), problem.dtype, problem.options),
                   InvalidArgument);
      return;
    }
    const AttentionInputs inputs = make_inputs(problem);
    const AttentionResult result = run_attention(*device, problem, inputs);
    compare(problem, result, run_oracle(problem, inputs, result.out));
    EXPECT_EQ(result.tiles, planned_tiles(problem));
  }

  void compare(const AttentionCase& problem, const AttentionResult& result, const AttentionResult& exact) const {
    const Tolerance tolerance;
    const double sums =
        tolerance.fp32_relative +
        (backend()->rounds_products() ? tolerance.rounded_products * unit_roundoff(problem.dtype) : 0.0);
    const auto bound = [&](const std::vector<double>& values) {
      const double once = problem.dtype == DType::fp32 ? 0.0 : relative_error(rounded(values, problem.dtype), values);
      return tolerance.over_rounding_once * once + sums;
    };
    EXPECT_LE(relative_error(result.out, exact.out), bound(exact.out));
    EXPECT_LE(relative_error(result.dq, exact.dq, exact.dq_size), bound(exact.dq));
    EXPECT_LE(relative_error(result.dk, exact.dk, exact.dk_size), sums);
    EXPECT_LE(relative_error(result.dv, exact.dv), sums);
    EXPECT_LE(max_error(result.lse, exact.lse), tolerance.fp32_relative * largest_size(exact.lse));
  }

  /// Of the finite values, at least 1.
  static double largest_size(const std::vector<double>& values) {
    double largest = 1.0;
    for (double value : values)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    return largest;
  }
};

}  // namespace marble::testing

#include "backend/conformance_arithmetic.hpp"
#include "backend/conformance_masks.hpp"
#include "backend/conformance_rows.hpp"

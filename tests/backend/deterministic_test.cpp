// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// AttentionOptions::deterministic on the GPU: gradients repeat to the bit, and are as exact as those in any order.

#include "backend/attention_case.hpp"
#include "backend/cuda/backend_cuda.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace marble::testing {
namespace {

struct Subject {
  std::string name;
  CudaKernels kernels;
  DType dtype;
  std::int32_t head_dim;
};

void PrintTo(const Subject& subject, std::ostream* stream) {
  *stream << subject.name;
}

class DeterministicGradients : public ::testing::TestWithParam<Subject> {
 protected:
  [[nodiscard]] AttentionCase make_case(const std::vector<std::vector<Span>>& samples, std::int32_t heads,
                                        std::int32_t kv_heads, std::int64_t window = 0) const {
    AttentionCase problem =
        whole_case(layout_from_samples(samples), Canonical::sequence, {window, false}, GetParam().head_dim, 128);
    problem.dtype = GetParam().dtype;
    problem.spec.kv_heads = kv_heads;
    problem.spec.head_map.clear();
    for (std::int32_t head = 0; head < heads; ++head) problem.spec.head_map.push_back(head / (heads / kv_heads));
    problem.options.softmax_scale = 1.0 / std::sqrt(static_cast<double>(problem.spec.head_dim));
    return problem;
  }

  static void check_repeats(AttentionCase problem, int repeats) {
    const AttentionInputs inputs = make_inputs(problem);
    cuda::CudaBackend backend(0, nullptr, GetParam().kernels);
    const AttentionResult any_order = run_attention(backend, problem, inputs);
    problem.options.deterministic = true;
    std::vector<std::byte> first_sums, sums;
    const AttentionResult first = run_attention(backend, problem, inputs, &first_sums);
    // The exact gradients are the conformance suite's matter; another order of fp32 sums moves them by next to nothing,
    // and a cast by a unit in the last place here and there.
    constexpr double kSums = 1e-5;
    EXPECT_LE(relative_error(first.dk, any_order.dk), kSums);
    EXPECT_LE(relative_error(first.dv, any_order.dv), kSums);
    EXPECT_LE(relative_error(first.dq, any_order.dq), problem.dtype == DType::bf16 ? 4e-4 : 5e-5);
    for (int repeat = 0; repeat < repeats; ++repeat) {
      ASSERT_TRUE(run_attention(backend, problem, inputs, &sums) == first) << "repeat " << repeat;
      ASSERT_TRUE(sums == first_sums) << "repeat " << repeat;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Cuda, DeterministicGradients,
                         ::testing::Values(Subject{"best_bf16_128", CudaKernels::best, DType::bf16, 128},
                                           Subject{"best_fp16_64", CudaKernels::best, DType::fp16, 64},
                                           Subject{"best_bf16_256", CudaKernels::best, DType::bf16, 256},
                                           Subject{"best_bf16_100", CudaKernels::best, DType::bf16, 100},
                                           Subject{"plain_bf16_128", CudaKernels::plain, DType::bf16, 128},
                                           Subject{"plain_fp16_64", CudaKernels::plain, DType::fp16, 64},
                                           Subject{"plain_bf16_256", CudaKernels::plain, DType::bf16, 256},
                                           Subject{"compact_bf16_256", CudaKernels::compact, DType::bf16, 256}),
                         [](const auto& subject) { return subject.param.name; });

TEST_P(DeterministicGradients, RepeatWhenManyKeyBlocksMeetAQuery) {
  check_repeats(make_case({{{Mode::causal, 700}, {Mode::full, 900}, {Mode::causal, 333}}}, 8, 2), 10);
}

TEST_P(DeterministicGradients, RepeatInAWindow) {
  check_repeats(make_case({{{Mode::causal, 1500}, {Mode::causal, 400}}}, 4, 4, 300), 10);
}

TEST_P(DeterministicGradients, RepeatWhenFewItemsAreSplit) {
  check_repeats(make_case({{{Mode::full, 2100}}}, 1, 1), 10);
}

TEST_P(DeterministicGradients, RepeatWhenManyUnitsQueue) {
  check_repeats(make_case({{{Mode::causal, 300}, {Mode::full, 3700}}, {{Mode::noise, 1000}}}, 8, 2), 3);
}

TEST_P(DeterministicGradients, RepeatOverWorks) {
  const AttentionCase problem = make_case({{{Mode::causal, 300}, {Mode::full, 500}, {Mode::causal, 200}}}, 6, 2);
  check_repeats(split_works(problem, 3, 100), 10);
}

}  // namespace
}  // namespace marble::testing

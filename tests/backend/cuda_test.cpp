// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/cuda.hpp"

#include "backend/backend_conformance.hpp"
#include "backend/cuda/backend_cuda.hpp"

namespace marble::testing {

bool covers(DType dtype, std::int32_t head_dim) {
  return dtype != DType::fp32 && head_dim >= 1 && head_dim <= 256;
}

BackendFactory cuda_factory(std::string_view name, CudaKernels kernels, DType dtype, std::int32_t dim) {
  const auto make = [kernels](int) { return std::make_unique<cuda::CudaBackend>(0, nullptr, kernels); };
  return {fmt::format("{}_{}_{}", name, to_string(dtype), dim), make, covers, {128}, dim, dtype, false};
}

/// The device's best kernels and the plain ones, in both dtypes.
std::vector<BackendFactory> cuda_factories() {
  std::vector<BackendFactory> factories;
  for (const auto& [name, kernels] : {std::pair{"best", CudaKernels::best}, {"plain", CudaKernels::plain}})
    for (const auto& [dtype, dim] : {std::pair{DType::bf16, 128}, {DType::fp16, 64}, {DType::bf16, 256}})
      factories.push_back(cuda_factory(name, kernels, dtype, dim));
  return factories;
}

/// The plain kernels' tiles for little shared memory.
std::vector<BackendFactory> compact_factories() {
  return {cuda_factory("compact", CudaKernels::compact, DType::fp16, 64),
          cuda_factory("compact", CudaKernels::compact, DType::fp16, 128),
          cuda_factory("compact", CudaKernels::compact, DType::bf16, 256)};
}

INSTANTIATE_TEST_SUITE_P(Cuda, BackendConformance, ::testing::ValuesIn(cuda_factories()), factory_name);

/// What only this backend does, or only its machine's tools can see.
class CudaKernels : public BackendConformance {};

INSTANTIATE_TEST_SUITE_P(Cuda, CudaKernels, ::testing::ValuesIn(cuda_factories()), factory_name);
INSTANTIATE_TEST_SUITE_P(CompactCuda, CudaKernels, ::testing::ValuesIn(compact_factories()), factory_name);

TEST_P(CudaKernels, SmallEnoughForASanitizer) {
  const Layout pack = layout({{{Mode::causal, 5}, {Mode::full, 4}, {Mode::noise, 3}}, {{Mode::causal, 6}}});
  for (bool use_tracks : {false, true}) {
    AttentionCase problem = make_case(pack);
    problem.spec.use_tracks = use_tracks;
    set_heads(problem, 2, 1);
    check(split_works(problem, 2, block() / 2 + 1));
  }
}

TEST_P(CudaKernels, SplitsTheKeysOfAQueryBlockWhenThereAreFewItems) {
  // Just enough blocks for two splits of eight tiles, of the last queries' keys and of the first keys' queries.
  AttentionCase problem = make_case(layout({{{Mode::causal, 100}, {Mode::full, 40}, {Mode::causal, 130}}}));
  problem.dtype = GetParam().dtype;
  check(problem);
  check(split_works(problem, 2, 10 * block()));
}

TEST_P(CudaKernels, GivesTheSameForwardBitsFiftyTimes) {
  AttentionCase problem = mixed_case();
  set_heads(problem, 12, 2);
  problem = split_works(problem, 2, block());
  const AttentionInputs inputs = make_inputs(problem);
  const std::unique_ptr<Backend> device = backend();
  const AttentionResult first = run_attention(*device, problem, inputs);
  compare(problem, first, run_oracle(problem, inputs, first.out));
  for (int repeat = 0; repeat < 50; ++repeat) {
    const AttentionResult again = run_attention(*device, problem, inputs);
    ASSERT_EQ(again.out, first.out) << "repeat " << repeat;
    ASSERT_EQ(again.lse, first.lse) << "repeat " << repeat;
  }
}

TEST(CudaBackend, RunsHere) {
  EXPECT_TRUE(cuda_available());
  EXPECT_EQ(make_cuda_backend()->name(), "cuda");
  EXPECT_EQ(make_backend("cuda", 0, 1)->name(), "cuda");
}

TEST(CudaBackend, NamesAWrongDevice) {
  EXPECT_THROW(static_cast<void>(make_cuda_backend(-1)), InvalidArgument);
}

TEST(CudaBackend, RefusesAPlanBoundElsewhere) {
  class Elsewhere final : public BoundPlan {};
  EXPECT_THROW(make_cuda_backend()->forward(Elsewhere(), 0, {}, {}), InvalidArgument);
}

}  // namespace marble::testing

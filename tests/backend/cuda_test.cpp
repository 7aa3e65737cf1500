// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/cuda.hpp"

#include "backend/backend_conformance.hpp"
#include "backend/cuda/backend_cuda.hpp"

namespace marble::testing {

bool covers(DType dtype, std::int32_t head_dim) {
  return dtype != DType::fp32 && head_dim >= 1 && head_dim <= 256;
}

/// The device's best kernels and the plain ones, in both dtypes.
std::vector<BackendFactory> cuda_factories() {
  std::vector<BackendFactory> factories;
  for (const auto& [name, kernels] : {std::pair{"best", cuda::Kernels::best}, {"plain", cuda::Kernels::plain}})
    for (const auto& [dtype, dim] : {std::pair{DType::bf16, 128}, {DType::fp16, 64}, {DType::bf16, 256}}) {
      const auto make = [kernels = kernels](int) { return std::make_unique<cuda::CudaBackend>(0, nullptr, kernels); };
      factories.push_back(
          {fmt::format("{}_{}_{}", name, to_string(dtype), dim), make, covers, {128}, dim, dtype, true, false});
    }
  return factories;
}

INSTANTIATE_TEST_SUITE_P(Cuda, BackendConformance, ::testing::ValuesIn(cuda_factories()), factory_name);

TEST(CudaBackend, RunsHere) {
  EXPECT_TRUE(cuda_available());
  EXPECT_EQ(make_cuda_backend()->name(), "cuda");
}

TEST(CudaBackend, NamesAWrongDevice) {
  EXPECT_THROW(static_cast<void>(make_cuda_backend(-1)), InvalidArgument);
}

TEST(CudaBackend, RefusesAPlanBoundElsewhere) {
  class Elsewhere final : public BoundPlan {};
  EXPECT_THROW(make_cuda_backend()->forward(Elsewhere(), 0, {}, {}), InvalidArgument);
}

}  // namespace marble::testing

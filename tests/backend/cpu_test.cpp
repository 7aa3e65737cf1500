// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/backend_conformance.hpp"

namespace marble::testing {

const BackendFactory kCpu{.name = "Cpu",
                          .make = [](int num_threads) { return make_cpu_backend(num_threads); },
                          .covers = [](DType, std::int32_t head_dim) { return head_dim >= 1 && head_dim <= 256; },
                          .blocks = {16, 1, 7, 100, 128, 256},
                          .head_dim = 48,
                          .dtype = DType::fp32};

INSTANTIATE_TEST_SUITE_P(Backends, BackendConformance, ::testing::Values(kCpu), factory_name);

TEST(CpuBackend, NamesAWrongThreadCount) {
  EXPECT_THROW(static_cast<void>(make_cpu_backend(-1)), InvalidArgument);
}

TEST(CpuBackend, RefusesAPlanBoundElsewhere) {
  class Elsewhere final : public BoundPlan {};
  EXPECT_THROW(make_cpu_backend(1)->forward(Elsewhere(), 0, {}, {}), InvalidArgument);
}

}  // namespace marble::testing

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/backend_conformance.hpp"
#include "backend/cpu/backend_cpu.hpp"
#include "backend/cpu/levels.hpp"

namespace marble::testing {

bool covers(DType, std::int32_t head_dim) {
  return head_dim >= 1 && head_dim <= 256;
}

/// Every level that this machine can run, with small blocks and with blocks of 128.
std::vector<BackendFactory> cpu_factories() {
  std::vector<BackendFactory> factories;
  for (const cpu::Kernels* kernels : cpu::usable_kernels()) {
    const auto make = [kernels](int num_threads) { return std::make_unique<cpu::CpuBackend>(num_threads, *kernels); };
    const std::string name = kernels->name;
    factories.push_back({name + "_small_blocks", make, covers, {16, 1, 7, 100, 128, 256}, 48, DType::fp32});
    factories.push_back({name, make, covers, {128, 1, 7, 16, 100, 256}, 64, DType::bf16});
  }
  return factories;
}

INSTANTIATE_TEST_SUITE_P(Cpu, BackendConformance, ::testing::ValuesIn(cpu_factories()), factory_name);

TEST(CpuBackend, RunsHere) {
  EXPECT_FALSE(cpu::usable_kernels().empty());
  EXPECT_EQ(make_cpu_backend()->name(), "cpu");
}

TEST(CpuBackend, NamesAWrongThreadCount) {
  EXPECT_THROW(static_cast<void>(make_cpu_backend(-1)), InvalidArgument);
}

TEST(CpuBackend, RefusesAPlanBoundElsewhere) {
  class Elsewhere final : public BoundPlan {};
  EXPECT_THROW(make_cpu_backend(1)->forward(Elsewhere(), 0, {}, {}), InvalidArgument);
}

}  // namespace marble::testing

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The promise of exactness_test.cpp on a GPU: up to eight ranks are threads with a stream each, both kernels, both
// 16-bit types. Packs are those of the suite, eight times as long, so that blocks of 128 cut them as blocks of 16 do
// there.

#include "backend/cuda/backend_cuda.hpp"
#include "exactness/cases_run.hpp"
#include "exactness/subject.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

namespace marble::exactness {
namespace {

constexpr std::int32_t kBlock = 128;
constexpr std::int32_t kHeadDims[] = {64, 128, 256, 80};
constexpr Heads kHeadCounts[] = {{4, 2}, {7, 1}, {5, 5}, {16, 1}, {6, 1}};
constexpr Placement kPlacements[] = {Placement::contiguous, Placement::zigzag, Placement::striped,
                                     Placement::ptrr,       Placement::chunks, Placement::dealt};
constexpr Strategy kStrategies[] = {Strategy::ring, Strategy::alltoall, Strategy::allgather};
constexpr Keep kKeeps[] = {Keep::nothing, Keep::scattered, Keep::fetched};

/// Odd lengths stay odd; a span of one token stays one, and none stays none.
std::int64_t longer(std::int64_t length, std::int64_t factor) {
  return length <= 1 ? length : factor * length + length % 2 * (1 - factor % 2);
}

Pack longer_pack(const LayoutCase& entry, std::int32_t head_dim) {
  const std::int64_t factor = std::max(1, kBlock / entry.block);
  std::vector<std::vector<Span>> samples = entry.samples;
  for (std::vector<Span>& sample : samples)
    for (Span& span : sample) span.length = longer(span.length, factor);
  MaskRule rule = entry.rule;
  rule.window = longer(rule.window, factor);
  return {layout_from_samples(samples), rule, head_dim, kBlock};
}

std::vector<Mesh> meshes() {
  return {{.ring = 1},
          {.ring = 2},
          {.ring = 3},
          {.ring = 4},
          {.ring = 5},
          {.ring = 6},
          {.ring = 7},
          {.ring = 8},
          {.ring = 2, .ulysses = 2},
          {.ring = 1, .ulysses = 3},
          {.ring = 2, .ulysses = 4}};
}

using Parameters = std::tuple<std::size_t, DType, CudaKernels>;

/// A pack, dtype and kernel: each mesh with one placement, strategy and choice of what backward keeps; over the packs,
/// all of them.
class ExactnessOnGpu : public testing::TestWithParam<Parameters> {};

TEST_P(ExactnessOnGpu, EveryMeshEqualsOneRank) {
  const auto& [layout, dtype, kernels] = GetParam();
  std::size_t turn = 4 * layout + (dtype == DType::fp16 ? 2 : 0) + (kernels == CudaKernels::plain ? 1 : 0);
  const Pack pack = longer_pack(layout_cases()[layout], kHeadDims[turn % std::size(kHeadDims)]);
  const Device device{
      [kernels = kernels](int) { return std::make_unique<cuda::CudaBackend>(0, std::nullopt, kernels); }, 0};
  Subject subject(pack, kHeadCounts[turn % std::size(kHeadCounts)], dtype, turn % 6 == 5 ? 2.0 : 0.0, device);
  for (const Mesh& mesh : meshes()) {
    PlanOptions options = subject.options();
    options.placement = kPlacements[turn % std::size(kPlacements)];
    options.strategy = kStrategies[turn / 2 % std::size(kStrategies)];
    options.keep = kKeeps[turn / 3 % std::size(kKeeps)];
    options.fetch_tokens = turn % 4 == 3 ? 1600 : 0;
    ++turn;
    const Plan plan = subject.plan(mesh, options);
    const VerifyResult result = subject.judge(plan);
    CasesRun::instance().add(plan, dtype, result);
    EXPECT_TRUE(result.pass) << fmt::format("dim {} heads {}/{} {} {} keep {} {} x {}: ", pack.head_dim,
                                            plan.model.heads, plan.model.kv_heads, to_string(plan.placement),
                                            to_string(plan.layers[0].strategy), to_string(plan.keep), mesh.ring,
                                            mesh.ulysses)
                             << testing::PrintToString(result.failures);
  }
}

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  std::string pack = layout_cases()[std::get<0>(info.param)].name;
  std::ranges::replace(pack, ' ', '_');
  return fmt::format("{}_{}_{}", pack, to_string(std::get<1>(info.param)),
                     std::get<2>(info.param) == CudaKernels::plain ? "plain" : "best");
}

INSTANTIATE_TEST_SUITE_P(Packs, ExactnessOnGpu,
                         testing::Combine(testing::Range<std::size_t>(0, layout_cases().size()),
                                          testing::Values(DType::bf16, DType::fp16),
                                          testing::Values(CudaKernels::best, CudaKernels::plain)),
                         name_of);

class PrintsCases : public testing::Environment {
  void TearDown() override { CasesRun::instance().print(); }
};
const auto* const kPrintsCases = testing::AddGlobalTestEnvironment(new PrintsCases);

}  // namespace
}  // namespace marble::exactness

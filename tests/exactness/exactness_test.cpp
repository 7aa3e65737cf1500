// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The promise: attention over any number of ranks is what one rank computes, whatever the mask, the order of tokens,
// the placement and the heads. Output, LSE, dQ, dK and dV are compared by value with dense fp64.

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

constexpr Heads kHeadCounts[] = {{2, 2}, {4, 1}, {7, 1}};  // query heads per key head: 1, 4, 7
constexpr std::int32_t kRings[] = {1, 2, 3, 4, 5, 8};
constexpr Placement kPlacements[] = {Placement::contiguous, Placement::zigzag, Placement::striped,
                                     Placement::ptrr,       Placement::chunks, Placement::dealt};
constexpr Canonical kCanonicals[] = {Canonical::sequence, Canonical::stack};

std::string name_of(std::string name) {
  std::ranges::replace(name, ' ', '_');
  return name;
}

void expect_exact(Subject& subject, const Mesh& mesh, const PlanOptions& options) {
  const Plan plan = subject.plan(mesh, options);
  const VerifyResult result = subject.judge(plan);
  CasesRun::instance().add(plan, subject.dtype(), result);
  EXPECT_TRUE(result.pass) << to_string(plan.canonical) << " " << to_string(plan.placement) << " "
                           << to_string(plan.layers[0].strategy) << " R=" << mesh.ring << " U=" << mesh.ulysses << ": "
                           << testing::PrintToString(result.failures);
}

using RingParameters = std::tuple<std::size_t, std::size_t, DType>;

/// One pack, head count and dtype: all canonical orders, placements and ring sizes.
class Exactness : public testing::TestWithParam<RingParameters> {};

TEST_P(Exactness, RingsOfAnySizeEqualOneRank) {
  const auto& [layout, heads, dtype] = GetParam();
  Subject subject(pack_of(layout_cases()[layout]), kHeadCounts[heads], dtype);
  PlanOptions options = subject.options();
  for (Canonical canonical : kCanonicals)
    for (Placement placement : kPlacements)
      for (std::int32_t ring : kRings) {
        options.canonical = canonical;
        options.placement = placement;
        expect_exact(subject, {.ring = ring}, options);
      }
}

std::string ring_name(const testing::TestParamInfo<RingParameters>& info) {
  const std::size_t layout = std::get<0>(info.param);
  const Heads& heads = kHeadCounts[std::get<1>(info.param)];
  return fmt::format("{}_gqa{}_{}", name_of(layout_cases()[layout].name), heads.query / heads.key,
                     to_string(std::get<2>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Packs, Exactness,
                         testing::Combine(testing::Range<std::size_t>(0, layout_cases().size()),
                                          testing::Range<std::size_t>(0, std::size(kHeadCounts)),
                                          testing::Values(DType::bf16, DType::fp32)),
                         ring_name);

/// One pack: the other strategies, Ulysses degrees and dtype, and a softcap.
class ExactnessOfOthers : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] static Pack pack() { return pack_of(layout_cases()[GetParam()]); }
};

TEST_P(ExactnessOfOthers, StrategiesEqualOneRank) {
  Subject subject(pack(), {4, 2}, DType::fp32);
  PlanOptions options = subject.options();
  for (Strategy strategy : {Strategy::alltoall, Strategy::allgather})
    for (Placement placement : kPlacements)
      for (std::int64_t fetch_tokens : {0, 200})
        for (std::int32_t ring : {2, 5}) {
          options.strategy = strategy;
          options.placement = placement;
          options.fetch_tokens = fetch_tokens;
          expect_exact(subject, {.ring = ring}, options);
        }
}

TEST_P(ExactnessOfOthers, UlyssesDegreesEqualOneRank) {
  // Degrees that divide the heads, that do not, and that exceed the key heads.
  for (Heads heads : {Heads{6, 3}, Heads{7, 1}, Heads{5, 5}}) {
    Subject subject(pack(), heads, DType::bf16);
    for (const auto& [ring, ulysses] : {std::pair{1, 2}, {1, 3}, {2, 2}, {3, 2}, {1, 5}}) {
      for (Strategy strategy : {Strategy::ring, Strategy::alltoall}) {
        PlanOptions options = subject.options();
        options.strategy = strategy;
        expect_exact(subject, {.ring = ring, .ulysses = ulysses}, options);
      }
    }
  }
}

TEST_P(ExactnessOfOthers, Fp16AndASoftcapEqualOneRank) {
  for (double softcap : {0.0, 2.0}) {
    Subject subject(pack(), {4, 2}, DType::fp16, softcap);
    for (std::int32_t ring : {1, 3}) expect_exact(subject, {.ring = ring}, subject.options());
  }
}

std::string pack_name(const testing::TestParamInfo<std::size_t>& info) {
  return name_of(layout_cases()[info.param].name);
}

INSTANTIATE_TEST_SUITE_P(Packs, ExactnessOfOthers, testing::Range<std::size_t>(0, layout_cases().size()), pack_name);

}  // namespace
}  // namespace marble::exactness

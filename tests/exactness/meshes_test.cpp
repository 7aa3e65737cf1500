// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Ring x Ulysses meshes with heads that do not divide, every placement and strategy, and what backward keeps.

#include "exactness/cases_run.hpp"
#include "exactness/subject.hpp"
#include "support/rank_plan_edit.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace marble::exactness {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr Placement kPlacements[] = {Placement::contiguous, Placement::zigzag, Placement::striped,
                                     Placement::ptrr,       Placement::chunks, Placement::dealt};
constexpr Strategy kStrategies[] = {Strategy::ring, Strategy::alltoall, Strategy::allgather};
constexpr Keep kKeeps[] = {Keep::nothing, Keep::scattered, Keep::fetched};
constexpr Heads kHeadCounts[] = {{8, 8}, {8, 2}, {28, 4}, {6, 1}, {7, 1}};

std::vector<Mesh> meshes() {
  return {{.ring = 1, .ulysses = 2},
          {.ring = 2, .ulysses = 2},
          {.ring = 2, .ulysses = 3},
          {.ring = 4, .ulysses = 2},
          {.ring = 3, .ulysses = 4}};
}

/// A pack and head counts. Each of the meshes runs three of the 18 placements and strategies; over the packs, all of
/// them.
class MeshExactness : public testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST_P(MeshExactness, EveryMeshEqualsOneRank) {
  const auto& [layout, heads] = GetParam();
  Subject subject(pack_of(layout_cases()[layout]), kHeadCounts[heads], DType::bf16);
  std::size_t turn = 3 * layout + heads;
  for (const Mesh& mesh : meshes())
    for (int combination = 0; combination < 3; ++combination, ++turn) {
      PlanOptions options = subject.options();
      options.placement = kPlacements[turn % std::size(kPlacements)];
      options.strategy = kStrategies[turn / 2 % std::size(kStrategies)];
      options.keep = kKeeps[turn / 3 % std::size(kKeeps)];
      if (turn % 2 == 0) options.hardware.step_ns = 0;  // then backward splits a rank's own keys
      const Plan plan = subject.plan(mesh, options);
      const VerifyResult result = subject.judge(plan);
      CasesRun::instance().add(plan, subject.dtype(), result);
      EXPECT_TRUE(result.pass) << fmt::format("{} {} keep {} {} x {}: ", to_string(plan.placement),
                                              to_string(plan.layers[0].strategy), to_string(plan.keep), mesh.ring,
                                              mesh.ulysses)
                               << testing::PrintToString(result.failures);
    }
}

std::string mesh_name(const testing::TestParamInfo<std::tuple<std::size_t, std::size_t>>& info) {
  const Heads& heads = kHeadCounts[std::get<1>(info.param)];
  std::string name = layout_cases()[std::get<0>(info.param)].name;
  std::ranges::replace(name, ' ', '_');
  return fmt::format("{}_{}_{}", name, heads.query, heads.key);
}

INSTANTIATE_TEST_SUITE_P(Packs, MeshExactness,
                         testing::Combine(testing::Range<std::size_t>(0, layout_cases().size()),
                                          testing::Range<std::size_t>(0, std::size(kHeadCounts))),
                         mesh_name);

/// A window layer whose full span is cut by the border between two contiguous ranks.
Pack window_pack() {
  Pack pack;
  pack.layout = layout_from_samples(
      std::vector<std::vector<Span>>{{{Mode::causal, 90}, {Mode::full, 60}, {Mode::causal, 90}}, {{Mode::causal, 33}}});
  pack.rule = {.window = 20};
  return pack;
}

BackendFactory editing_rank_0(const std::function<void(RankPlanParts&)>& edit) {
  return [edit](int threads) {
    return std::make_unique<test::EditingBackend>(make_cpu_backend(threads), [edit](RankPlanParts& parts) {
      if (parts.header.rank == 0) edit(parts);
    });
  };
}

/// Hides the fetched keys that lie behind this rank's last query.
void drop_keys_ahead(RankPlanParts& parts) {
  const Segment& last = parts.query_segments.back();
  parts.rules.push_back({});  // seen by nobody
  for (std::size_t w = 1; w < parts.works.size(); ++w)
    for (std::int64_t s = parts.works[w].key_segments.begin; s < parts.works[w].key_segments.end; ++s) {
      Segment& segment = parts.segments[static_cast<std::size_t>(s)];
      if (segment.canonical >= last.canonical + last.length)
        segment.rule = static_cast<std::int32_t>(parts.rules.size()) - 1;
    }
  for (Run& run : parts.runs) run.block_class = BlockClass::partial;
}

TEST(MeshControl, FailsWhenAWindowLayerDropsTheKeysAhead) {
  Subject subject(window_pack(), {4, 2}, DType::bf16);
  PlanOptions options = subject.options();
  options.placement = Placement::contiguous;
  options.strategy = Strategy::alltoall;
  const Plan plan = subject.plan({.ring = 2}, options);
  EXPECT_TRUE(subject.judge(plan).pass);
  EXPECT_THAT(subject.judge(plan, editing_rank_0(drop_keys_ahead)).failures, Contains(HasSubstr("out: error")));
}

void drop_key_gradients(RankPlanParts& parts) {
  for (Work& work : parts.works) work.backward_items = {};
}

TEST(MeshControl, FailsWhenOneReplicasGradientIsDropped) {
  Subject subject(pack_of(layout_cases()[0]), {6, 1}, DType::bf16);
  const Plan plan = subject.plan({.ring = 1, .ulysses = 2}, subject.options());
  EXPECT_TRUE(subject.judge(plan).pass);
  const VerifyResult result = subject.judge(plan, editing_rank_0(drop_key_gradients));
  EXPECT_THAT(result.failures, Contains(HasSubstr("dk: error")));
  EXPECT_THAT(result.failures, Contains(HasSubstr("dv: error")));
}

}  // namespace
}  // namespace marble::exactness

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Negative controls: the suite's own check must fail when something is wrong.

#include "exactness/subject.hpp"
#include "support/lossy_backend.hpp"
#include "support/rank_plan_edit.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

namespace marble::exactness {
namespace {

using test::EditingBackend;
using test::Losses;
using test::LossyBackend;
using testing::Contains;
using testing::HasSubstr;

const LayoutCase& layout_case(std::string_view name) {
  for (const LayoutCase& entry : layout_cases())
    if (entry.name == name) return entry;
  throw InternalError("no such layout case");
}

BackendFactory lossy(const Losses& losses) {
  return [losses](int threads) { return std::make_unique<LossyBackend>(make_cpu_backend(threads), losses); };
}

/// Edits the plan of rank 0 only.
BackendFactory editing(const std::function<void(RankPlanParts&)>& edit) {
  return [edit](int threads) {
    return std::make_unique<EditingBackend>(make_cpu_backend(threads), [edit](RankPlanParts& parts) {
      if (parts.header.rank == 0) edit(parts);
    });
  };
}

/// Verdict on a ring of 4 with the pack of this name.
VerifyResult verdict(std::string_view name, DType dtype, const BackendFactory& backend) {
  Subject subject(pack_of(layout_case(name)), {4, 2}, dtype);
  return subject.judge(subject.plan({.ring = 4}, subject.options()), backend);
}

class LossyControl : public testing::TestWithParam<const char*> {};

TEST_P(LossyControl, PassesWithoutLosses) {
  EXPECT_TRUE(verdict(GetParam(), DType::bf16, lossy({})).pass);
}

TEST_P(LossyControl, FailsWhenMergesAreRounded) {
  EXPECT_THAT(verdict(GetParam(), DType::bf16, lossy({.partial_outputs = true})).failures,
              Contains(HasSubstr("out: error")));
  EXPECT_THAT(verdict(GetParam(), DType::bf16, lossy({.partial_outputs = true, .merged_outputs = true})).failures,
              Contains(HasSubstr("out: error")));
}

TEST_P(LossyControl, FailsWhenKeyGradientsAreRounded) {
  for (const Losses& losses : {Losses{.key_partials = true}, Losses{.key_partials = true, .key_sums = true}}) {
    const VerifyResult result = verdict(GetParam(), DType::bf16, lossy(losses));
    EXPECT_THAT(result.failures, Contains(HasSubstr("dk: error")));
    EXPECT_THAT(result.failures, Contains(HasSubstr("dv: error")));
  }
}

TEST_P(LossyControl, FailsWhenTheQueryGradientIsRounded) {
  EXPECT_THAT(verdict(GetParam(), DType::bf16, lossy({.query_gradient = true})).failures,
              Contains(HasSubstr("dq: error")));
}

INSTANTIATE_TEST_SUITE_P(Packs, LossyControl, testing::Values("causal", "images", "edits", "video"));

/// Hides one key of the rank's own rows from one query that sees it: the key's own token.
void drop_one_pair(RankPlanParts& parts) {
  const Work work = parts.works.front();
  const auto at = static_cast<std::size_t>(work.key_segments.begin);
  const Segment segment = parts.segments[at];
  const std::int64_t key = segment.canonical + 1;
  const VisibleRule rule = parts.rules[static_cast<std::size_t>(segment.rule)];
  ASSERT_EQ(rule.lo(key), key) << "the first query that sees the key is not its own";
  const VisibleRule without{.lo_min = key + 1, .hi_max = rule.hi(key), .hi_min = rule.hi(key)};
  parts.rules.push_back(without);

  Segment first = segment, second = segment, rest = segment;
  first.length = second.length = 1;
  rest.length -= 2;
  second.rule = static_cast<std::int32_t>(parts.rules.size()) - 1;
  for (const auto& [part, offset] : {std::pair{&second, 1}, {&rest, 2}}) {
    part->row += offset;
    part->canonical += offset;
    part->position += offset;
  }
  parts.segments[at] = first;
  parts.segments.insert(parts.segments.begin() + static_cast<std::ptrdiff_t>(at) + 1, {second, rest});
  for (Work& entry : parts.works) {
    if (entry.key_segments.begin > static_cast<std::int64_t>(at)) entry.key_segments.begin += 2;
    if (entry.key_segments.end > static_cast<std::int64_t>(at)) entry.key_segments.end += 2;
  }
}

TEST(PlanControl, FailsWhenOneVisiblePairIsDropped) {
  for (DType dtype : {DType::fp32, DType::bf16}) {
    EXPECT_TRUE(verdict("causal", dtype, editing([](RankPlanParts&) {})).pass);
    const VerifyResult result = verdict("causal", dtype, editing(drop_one_pair));
    EXPECT_THAT(result.failures, Contains(HasSubstr("out: error")));
    EXPECT_THAT(result.failures, Contains(HasSubstr("dv: error")));
    EXPECT_THAT(result.failures, Contains(HasSubstr("lse: error")));
  }
}

void drop_one_tile(RankPlanParts& parts) {
  for (marble::Run& run : parts.runs)
    if (run.end - run.begin > 1) {
      --run.end;
      return;
    }
}

void take_all_tiles_for_full(RankPlanParts& parts) {
  for (marble::Run& run : parts.runs) run.block_class = BlockClass::full;
}

TEST(PlanControl, FailsWhenOneTileIsDropped) {
  EXPECT_FALSE(verdict("full", DType::bf16, editing(drop_one_tile)).pass);
}

TEST(PlanControl, FailsWhenAPartialTileIsTakenForFull) {
  EXPECT_THAT(verdict("causal", DType::bf16, editing(take_all_tiles_for_full)).failures,
              Contains(HasSubstr("out: error")));
}

/// A pack, and the same tokens under a mask that lost something.
struct LostFlag {
  const char* what;
  std::vector<std::vector<Span>> samples, planned_samples;
  MaskRule rule = {}, planned_rule = {};
};

std::vector<LostFlag> lost_flags() {
  using enum Mode;
  const std::vector<Span> text = {{causal, 120}};
  return {
      {"noise read as full",
       {{{causal, 90}, {noise, 60}, {full, 60}}, text},
       {{{causal, 90}, {full, 60}, {full, 60}}, text}},
      {"full read as causal", {{{causal, 90}, {full, 60}}, text}, {{{causal, 150}}, text}},
      {"group read as full",
       {{{group, 50}, {causal, 40}, {group, 50}}, text},
       {{{full, 50}, {causal, 40}, {full, 50}}, text}},
      {"branch read as causal", {{{causal, 40}, {branch, 50}, {branch, 50}}, text}, {{{causal, 140}}, text}},
      {"two noise sets joined",
       {{{noise, 50}, {causal, 20}, {noise, 50}}, text},
       {{{noise, 50, 0}, {causal, 20}, {noise, 50, 0}}, text}},
      {"a sample border lost", {{{causal, 100}}, {{causal, 90}}, text}, {{{causal, 190}}, text}},
      {"a window lost", {{{causal, 200}}, text}, {{{causal, 200}}, text}, {.window = 64}, {}},
      {"a window off by one", {{{causal, 200}}, text}, {{{causal, 200}}, text}, {.window = 64}, {.window = 65}},
      {"the clamp lost", {{{full, 200}}, text}, {{{full, 200}}, text}, {.window = 64, .clamp = true}, {.window = 64}},
  };
}

TEST(MaskControl, FailsWhenAFlagIsLost) {
  for (const LostFlag& lost : lost_flags())
    for (DType dtype : {DType::fp32, DType::bf16}) {
      Subject subject({layout_from_samples(lost.samples), lost.rule}, {2, 1}, dtype);
      Model planned = subject.model();
      planned.layers = {{.rule = lost.planned_rule}};
      const Layout layout = layout_from_samples(lost.planned_samples);
      ASSERT_EQ(layout.num_tokens(), subject.pack().layout.num_tokens());
      const VerifyResult result = subject.judge(make_plan(layout, planned, {.ring = 3}, subject.options()));
      EXPECT_FALSE(result.pass) << lost.what;
      EXPECT_THAT(result.failures, Contains(HasSubstr("out: error"))) << lost.what;
    }
}

}  // namespace
}  // namespace marble::exactness

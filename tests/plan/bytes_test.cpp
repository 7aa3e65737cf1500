// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "mask/random_layout.hpp"

#include "marble/error.hpp"
#include "marble/plan.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace marble {
namespace {

Plan some_plan() {
  return make_plan(testing::random_layout(3), {.heads = 4, .kv_heads = 2, .layers = {{}, {{.window = 5}, 3}}},
                   {.ring = 3, .ulysses = 2}, {.block = 4, .stripe = 4});
}

TEST(PlanBytesTest, RoundTripKeepsEverything) {
  const Plan plan = some_plan();
  const Plan read = plan_from_bytes(to_bytes(plan));
  EXPECT_EQ(read.digest, plan.digest);
  EXPECT_EQ(to_bytes(read), to_bytes(plan));
  EXPECT_EQ(read.layout, plan.layout);
}

TEST(PlanBytesTest, DigestsTellPlansApart) {
  std::set<std::uint64_t> digests;
  for (const std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8})
    for (const std::int32_t ring : {1, 2}) {
      Layout layout;
      layout.add_sample(std::vector<Span>{{Mode::causal, tokens}});
      const Plan plan = make_plan(layout, {}, {.ring = ring}, {.block = 4, .stripe = 4});
      EXPECT_NE(plan.digest, 0U);
      EXPECT_EQ(plan_from_bytes(to_bytes(plan)).digest, plan.digest);
      digests.insert(plan.digest);
    }
  EXPECT_EQ(digests.size(), 16U);
}

TEST(PlanBytesTest, EqualInputsGiveEqualBytesWhateverTheThreads) {
  const Layout layout = testing::random_layout(5);
  const auto bytes = [&](int threads) {
    const Plan plan = make_plan(layout, {}, {.ring = 4}, {.block = 4, .stripe = 4, .threads = threads});
    const RankPlan rank_plan = make_rank_plan(plan, 2, 0, threads);
    return std::pair{to_bytes(plan), std::vector(rank_plan.bytes().begin(), rank_plan.bytes().end())};
  };
  EXPECT_EQ(bytes(1), bytes(3));
}

TEST(PlanBytesTest, EveryTruncationAndEveryFlippedByteIsRefused) {
  const std::vector<std::byte> bytes = to_bytes(some_plan());
  for (std::size_t size = 0; size < bytes.size(); size += 7)
    EXPECT_THROW(static_cast<void>(plan_from_bytes(std::span(bytes).first(size))), InvalidArgument);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::vector<std::byte> altered = bytes;
    altered[i] ^= std::byte{0x10};
    EXPECT_THROW(static_cast<void>(plan_from_bytes(altered)), InvalidArgument) << "byte " << i;
  }
}

TEST(PlanBytesTest, RefusesStepsThatDoNotFitTheDemand) {
  for (const std::int32_t change : {-1, 1}) {
    Layout layout;
    layout.add_sample(std::vector<Span>{{Mode::causal, 24}});
    Plan plan = make_plan(layout, {}, {.ring = 3},
                          {.placement = Placement::contiguous, .strategy = Strategy::ring, .block = 4, .stripe = 4});
    ASSERT_EQ(plan.layers[0].num_slices, 2);
    plan.layers[0].num_slices += change;
    EXPECT_THROW(static_cast<void>(plan_from_bytes(to_bytes(plan))), InvalidArgument);
  }
}

TEST(PlanBytesTest, RefusesAPlanForAnotherLayout) {
  EXPECT_THROW(check_plan_for(some_plan(), testing::random_layout(4)), InvalidArgument);
  EXPECT_NO_THROW(check_plan_for(some_plan(), testing::random_layout(3)));
}

TEST(RankPlanBytesTest, EveryTruncationAndEveryFlippedByteIsRefused) {
  const RankPlan plan = make_rank_plan(some_plan(), 1);
  const std::vector<std::byte> bytes(plan.bytes().begin(), plan.bytes().end());
  EXPECT_NO_THROW(static_cast<void>(RankPlan::from_bytes(bytes)));
  for (std::size_t size = 0; size < bytes.size(); size += 97)
    EXPECT_THROW(
        static_cast<void>(RankPlan::from_bytes({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)})),
        InvalidArgument);
  for (std::size_t i = sizeof(RankPlanHeader); i < bytes.size(); i += 31) {
    std::vector<std::byte> altered = bytes;
    altered[i] ^= std::byte{1};
    EXPECT_THROW(static_cast<void>(RankPlan::from_bytes(altered)), InvalidArgument) << "byte " << i;
  }
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "mask/random_layout.hpp"

#include "marble/cost.hpp"
#include "marble/error.hpp"
#include "marble/generators.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace marble {
namespace {

using ::testing::HasSubstr;

TEST(ChoiceTest, RanksByTimeOnePlacementForTheModelAndAStrategyForEachKind) {
  const Layout layout = generate("gemma3-docs", 262144, 0);
  const Model model = model_of(generator("gemma3-docs"));
  const Choice choice = choose(layout, model, {.ring = 8, .ulysses = 4});
  std::set<Placement> seen;
  for (std::size_t c = 0; c < choice.candidates.size(); ++c) {
    const Candidate& candidate = choice.candidates[c];
    seen.insert(candidate.placement);
    ASSERT_EQ(candidate.layers.size(), 2U);
    EXPECT_EQ(candidate.model_ns, 10 * candidate.layers[0].total_ns() + 52 * candidate.layers[1].total_ns());
    EXPECT_TRUE(candidate.fits);
    EXPECT_GE(candidate.model_ns, choice.candidates[c > 0 ? c - 1 : 0].model_ns);
  }
  EXPECT_GE(seen.size(), 2U);
  EXPECT_EQ(choice.best().layers[1].strategy, Strategy::alltoall);  // windows
  EXPECT_FALSE(choice.why.empty());
  EXPECT_THAT(choice.best().layers[1].why, HasSubstr("alltoall takes"));
}

TEST(ChoiceTest, MakePlanFollowsItAndEstimatesTheSame) {
  const Layout layout = generate("bagel-mix", 131072, 1);
  const Model model = model_of(generator("bagel-mix"));
  const Mesh mesh{.ring = 4, .ulysses = 4};
  const Candidate best = choose(layout, model, mesh).best();
  const Plan plan = make_plan(layout, model, mesh);
  EXPECT_EQ(plan.placement, best.placement);
  EXPECT_EQ(plan.layers[0].strategy, best.layers[0].strategy);
  EXPECT_EQ(estimate(plan).total_ns(), best.layers[0].total_ns());
  EXPECT_EQ(memory_bytes(plan), best.memory_bytes);
}

TEST(ChoiceTest, IsTheSameWhateverTheThreads) {
  const Layout layout = generate("molmo2-sft", 65536, 2);
  const auto candidates = [&](int threads) {
    PlanOptions options;
    options.threads = threads;
    std::vector<std::tuple<Placement, Strategy, std::int64_t>> result;
    for (const Candidate& c : choose_mesh(layout, {.heads = 8, .kv_heads = 4}, 16, 8, options).candidates)
      result.emplace_back(c.placement, c.layers[0].strategy, c.model_ns);
    return result;
  };
  EXPECT_EQ(candidates(1), candidates(3));
}

TEST(ChoiceTest, GivenPlacementAndStrategyAreTheOnlyCandidates) {
  const Layout layout = testing::random_layout(4);
  PlanOptions options{.placement = Placement::zigzag, .layer_strategies = {Strategy::allgather, Strategy::ring}};
  const Choice choice = choose(layout, {.layers = {{}, {{.window = 9}, 2}}}, {.ring = 3}, options);
  ASSERT_EQ(choice.candidates.size(), 1U);
  EXPECT_EQ(choice.best().placement, Placement::zigzag);
  EXPECT_EQ(choice.best().layers[0].strategy, Strategy::allgather);
  EXPECT_EQ(choice.best().layers[1].strategy, Strategy::ring);
  options.layer_strategies.pop_back();
  EXPECT_THROW(static_cast<void>(choose(layout, {.layers = {{}, {{.window = 9}, 2}}}, {.ring = 3}, options)),
               InvalidArgument);
}

TEST(ChoiceTest, OrderDependentModelsStayContiguousInSequenceOrder) {
  const Layout layout = generate("qwen38-docs", 65536, 0);
  const Model model = model_of(generator("qwen38-docs"));
  const Choice choice = choose(layout, model, {.ring = 4, .ulysses = 2});
  for (const Candidate& candidate : choice.candidates) {
    EXPECT_EQ(candidate.placement, Placement::contiguous);
    EXPECT_EQ(candidate.canonical, Canonical::sequence);
  }
  EXPECT_THAT(choice.left_out.front(), HasSubstr("token order"));
  EXPECT_EQ(make_plan(layout, model, {.ring = 4, .ulysses = 2}).placement, Placement::contiguous);
}

TEST(ChoiceTest, OfEquallyFastOnesTheOneThatReceivesFewestKeysWins) {
  const Layout layout = generate("qwen3vl-video", 131072, 0);
  PlanOptions options;
  options.hardware.memory_mbytes_per_s = 20'000'000;  // clearing and adding what is moved takes no time
  const Choice choice = choose(layout, {.heads = 32, .kv_heads = 4, .head_dim = 128}, {.ring = 4}, options);
  const Candidate& best = choice.best();
  bool beats_a_faster_one = false;
  for (const Candidate& candidate : choice.candidates) {
    if (candidate.model_ns > best.model_ns + best.model_ns / 100) continue;
    EXPECT_LE(best.layers[0].kv_tokens, candidate.layers[0].kv_tokens);
    beats_a_faster_one = beats_a_faster_one || candidate.model_ns < best.model_ns;
  }
  EXPECT_TRUE(beats_a_faster_one);
  EXPECT_THAT(best.layers[0].why, HasSubstr("receives fewest keys"));
}

TEST(ChoiceTest, WhatFitsComesBeforeWhatIsFaster) {
  const Layout layout = generate("bagel-mix", 131072, 0);
  const Model model = model_of(generator("bagel-mix"));
  const Mesh mesh{.ring = 8};
  const Choice roomy = choose(layout, model, mesh);
  std::int64_t smallest = roomy.best().memory_bytes, largest = smallest;
  for (const Candidate& candidate : roomy.candidates) {
    EXPECT_TRUE(candidate.fits);
    smallest = std::min(smallest, candidate.memory_bytes);
    largest = std::max(largest, candidate.memory_bytes);
  }
  ASSERT_LT(smallest, largest);
  PlanOptions options;
  options.hardware.memory_bytes = smallest;
  const Choice tight = choose(layout, model, mesh, options);
  EXPECT_TRUE(tight.best().fits);
  EXPECT_EQ(tight.best().memory_bytes, smallest);
  EXPECT_FALSE(tight.candidates.back().fits);
  options.hardware.memory_bytes = smallest / 2;
  EXPECT_EQ(choose(layout, model, mesh, options).best().memory_bytes, smallest);  // nothing fits: the least
}

TEST(ChooseMeshTest, SplitsStayInsideANodeAndWithinTheHeads) {
  const Layout layout = generate("qwen3vl-docs", 65536, 0);
  const Choice choice = choose_mesh(layout, {.heads = 6, .kv_heads = 2}, 16, 8);
  std::set<std::int32_t> degrees;
  for (const Candidate& candidate : choice.candidates) {
    EXPECT_EQ(candidate.mesh.num_ranks(), 16);
    degrees.insert(candidate.mesh.ulysses);
  }
  EXPECT_EQ(degrees, (std::set<std::int32_t>{1, 2, 4}));
  EXPECT_THROW(static_cast<void>(choose_mesh(layout, {}, 1025, 8)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(choose_mesh(layout, {}, 0, 8)), InvalidArgument);
}

TEST(PaperChoiceTest, FollowsTheTable) {
  const Layout docs = generate("qwen3vl-docs", 65536, 0), video = generate("bagel-longvideo", 1048576, 4);
  EXPECT_EQ(paper_choice(docs, {}).strategy, Strategy::alltoall);
  EXPECT_EQ(paper_choice(docs, {}).placement, Placement::contiguous);
  EXPECT_EQ(paper_choice(video, {}).strategy, Strategy::ring);
  EXPECT_EQ(paper_choice(video, {}).placement, Placement::chunks);
  EXPECT_EQ(paper_choice(video, {.window = 1024}).strategy, Strategy::alltoall);
}

}  // namespace
}  // namespace marble

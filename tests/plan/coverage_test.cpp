// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Every legal pair is computed exactly once, forward and backward, and every sum reaches its owner.

#include "plan/counting_ranks.hpp"

#include "marble/error.hpp"

#include <gtest/gtest.h>

namespace marble {
namespace {

using testing::CountingRanks;
using testing::random_layout;
using testing::token_tracks;

struct Shape {
  Mesh mesh;
  Model model;
};

std::vector<Shape> shapes() {
  const auto shape = [](std::int32_t ring, std::int32_t ulysses, std::int32_t heads, std::int32_t kv_heads) {
    return Shape{{.ring = ring, .ulysses = ulysses}, {.heads = heads, .kv_heads = kv_heads, .head_dim = 8}};
  };
  return {shape(1, 1, 1, 1), shape(2, 1, 2, 1), shape(3, 1, 1, 1), shape(5, 1, 2, 2), shape(8, 1, 1, 1),
          shape(1, 2, 2, 2), shape(2, 2, 7, 1), shape(2, 3, 6, 2), shape(3, 4, 8, 2), shape(1, 8, 28, 4)};
}

/// [position][head] counts of seen keys (by query) and of seeing queries (by key).
struct Expected {
  std::vector<std::int64_t> keys_seen, queries_seeing;
};

Expected count(const Layout& layout, const MaskRule& rule) {
  const std::vector<TokenTracks> tracks = token_tracks(layout);
  Expected expected{std::vector<std::int64_t>(tracks.size()), std::vector<std::int64_t>(tracks.size())};
  for (std::size_t q = 0; q < tracks.size(); ++q)
    for (std::size_t k = 0; k < tracks.size(); ++k)
      if (is_legal(rule, tracks[q], tracks[k])) ++expected.keys_seen[q], ++expected.queries_seeing[k];
  return expected;
}

void expect_all(const std::vector<std::vector<std::int64_t>>& gathered, const std::vector<std::int64_t>& expected,
                std::int64_t times, const char* what) {
  for (std::size_t position = 0; position < expected.size(); ++position)
    for (std::size_t head = 0; head < gathered[position].size(); ++head)
      ASSERT_EQ(gathered[position][head], expected[position] * times)
          << what << " of position " << position << " head " << head;
}

void expect_exact(const Layout& layout, Shape shape, const MaskRule& rule, const PlanOptions& options) {
  shape.model.layers = {LayerKind{rule, 1}};
  const Plan plan = make_plan(layout, shape.model, shape.mesh, options);
  const Expected expected = count(layout, rule);
  CountingRanks ranks(plan);
  ranks.forward();
  expect_all(ranks.gather(Tensor::out), expected.keys_seen, 1, "out");
  expect_all(ranks.gather(Tensor::lse), expected.keys_seen, 1, "lse");
  ranks.backward();
  expect_all(ranks.gather(Tensor::dq), expected.keys_seen, 1, "dq");
  const std::int64_t group = shape.model.heads / shape.model.kv_heads;
  expect_all(ranks.gather(Tensor::dk), expected.queries_seeing, group, "dk");
  expect_all(ranks.gather(Tensor::dv), expected.queries_seeing, group, "dv");
}

class CoverageTest : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(CoverageTest, EveryLegalPairIsComputedExactlyOnce) {
  const std::uint32_t seed = GetParam();
  const Layout layout = random_layout(seed, {.max_samples = 4, .max_spans = 6, .max_length = 9});
  const std::vector<Shape> all_shapes = shapes();
  std::uint32_t turn = seed;
  for (const Canonical canonical : {Canonical::sequence, Canonical::stack})
    for (const Placement placement : {Placement::contiguous, Placement::zigzag, Placement::striped, Placement::ptrr,
                                      Placement::chunks, Placement::dealt})
      for (const Strategy strategy : {Strategy::ring, Strategy::alltoall, Strategy::allgather}) {
        const Shape& shape = all_shapes[turn % all_shapes.size()];
        const MaskRule& rule = testing::mask_rules()[turn / 3 % testing::mask_rules().size()];
        ++turn;
        SCOPED_TRACE(fmt::format("seed {} {} {} {} ring {} ulysses {} window {} clamp {}", seed, to_string(canonical),
                                 to_string(placement), to_string(strategy), shape.mesh.ring, shape.mesh.ulysses,
                                 rule.window, rule.clamp));
        const std::int32_t block = turn % 2 == 0 ? 4 : 6;
        Hardware hardware;
        hardware.range_ns = 0;                   // so that packs this small are cut into chunks
        if (turn % 4 < 2) hardware.step_ns = 0;  // so that returns this small are hidden
        ASSERT_NO_THROW(expect_exact(layout, shape, rule,
                                     {.canonical = canonical,
                                      .placement = placement,
                                      .strategy = strategy,
                                      .hardware = hardware,
                                      .block = block,
                                      .stripe = turn % 3 == 0 ? block : 2,
                                      .keep = static_cast<Keep>(turn % 3)}));
        if (HasFatalFailure()) return;
      }
}

INSTANTIATE_TEST_SUITE_P(RandomLayouts, CoverageTest, ::testing::Range(0U, 40U));

TEST(CoverageEdgeTest, MoreRanksThanBlocksAndEmptyLayouts) {
  for (const std::int64_t tokens : {0, 1, 3}) {
    Layout layout;
    layout.add_sample(std::vector<Span>{});
    layout.add_sample(std::vector<Span>{{Mode::causal, tokens}});
    for (const Shape& shape : shapes())
      for (const Strategy strategy : {Strategy::ring, Strategy::alltoall})
        expect_exact(layout, shape, {}, {.strategy = strategy, .block = 2, .stripe = 2});
  }
}

TEST(FetchTest, AllToAllFetchesExactlyTheBlocksThatHoldALegalPair) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Layout layout = random_layout(seed);
    const std::vector<TokenTracks> tracks = token_tracks(layout);
    const Mesh mesh{.ring = 3};
    const Plan plan =
        make_plan(layout, {}, mesh,
                  {.placement = Placement::contiguous, .strategy = Strategy::alltoall, .block = 4, .stripe = 4});
    for (std::int32_t r = 0; r < mesh.ring; ++r)
      for (std::int32_t j = 0; j < mesh.ring; ++j) {
        const std::vector<std::int64_t> queries = rank_positions(plan, r), keys = rank_positions(plan, j);
        std::int64_t needed = 0;
        for (std::size_t b = 0; b < keys.size(); b += 4) {
          bool seen = false;
          for (std::size_t k = b; k < std::min(b + 4, keys.size()); ++k)
            for (const std::int64_t q : queries)
              seen =
                  seen || is_legal({}, tracks[static_cast<std::size_t>(q)], tracks[static_cast<std::size_t>(keys[k])]);
          needed += seen;
        }
        EXPECT_EQ(plan.layers[0].demand[static_cast<std::size_t>(r * mesh.ring + j)].needed_blocks, needed);
      }
  }
}

/// Sorted (query block, key block, class) of a work's items.
std::vector<std::tuple<int, int, int>> tiles(const RankPlan& rank_plan, const SectionRange& items, bool key_major) {
  std::vector<std::tuple<int, int, int>> result;
  for (std::int64_t i = items.begin; i < items.end; ++i) {
    const Item& item = rank_plan.items()[static_cast<std::size_t>(i)];
    for (std::int64_t r = item.run_begin; r < item.run_begin + item.run_count; ++r) {
      const marble::Run& run = rank_plan.runs()[static_cast<std::size_t>(r)];
      for (int other = run.begin; other < run.end; ++other)
        result.emplace_back(key_major ? other : item.block, key_major ? item.block : other,
                            static_cast<int>(run.block_class));
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

TEST(RankPlanTest, BackwardItemsAreTheTransposeOfForwardItems) {
  const Plan plan = make_plan(random_layout(7), {}, {.ring = 3}, {.block = 4, .stripe = 4});
  const RankPlan rank_plan = make_rank_plan(plan, 1);
  ASSERT_EQ(rank_plan.works().size(), 3U);
  for (const Work& work : rank_plan.works()) {
    EXPECT_EQ(tiles(rank_plan, work.forward_items, false), tiles(rank_plan, work.backward_items, true));
    EXPECT_EQ(static_cast<std::int64_t>(tiles(rank_plan, work.forward_items, false).size()), work.tiles);
  }
}

TEST(RankPlanTest, BackwardSplitsOwnKeysRoundTheSlicesWhereAReturnIsWorthHiding) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::causal, 400}});
  PlanOptions options{.placement = Placement::zigzag, .strategy = Strategy::ring, .block = 4, .stripe = 4};
  options.hardware.step_ns = 0;
  const RankPlan rank_plan = make_rank_plan(make_plan(layout, {}, {.ring = 2}, options), 1);
  ASSERT_EQ(rank_plan.works().size(), 3U);
  const Work& own = rank_plan.works()[0];
  const Work& last = rank_plan.works()[2];
  std::vector<std::int32_t> order;
  for (const Step& step : rank_plan.backward_steps()) order.push_back(step.work);
  EXPECT_EQ(order, (std::vector<std::int32_t>{0, 1, 2, -1}));
  for (const Step& step : rank_plan.forward_steps()) EXPECT_NE(step.work, 2);
  EXPECT_EQ(last.k, own.k);
  EXPECT_EQ(last.dk, own.dk);
  EXPECT_EQ(last.clear_gradients, 0);
  EXPECT_EQ(last.forward_items.size(), 0);
  auto all = tiles(rank_plan, own.backward_items, true);
  const auto hidden = tiles(rank_plan, last.backward_items, true);
  // Gradients return in 32 bits, keys come in 16: two thirds of the work wait.
  EXPECT_NEAR(static_cast<double>(hidden.size()) / static_cast<double>(own.tiles), 2.0 / 3, 0.02);
  all.insert(all.end(), hidden.begin(), hidden.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, tiles(rank_plan, own.forward_items, false));
  // Both parts hold long and short items.
  const auto longest = [&](const Work& work) {
    return rank_plan.items()[static_cast<std::size_t>(work.backward_items.begin)].tiles;
  };
  EXPECT_GE(longest(own) + 3, longest(last));
  EXPECT_GE(longest(last) + 3, longest(own));
}

}  // namespace
}  // namespace marble

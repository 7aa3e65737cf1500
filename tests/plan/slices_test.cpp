// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// How fetches are cut into steps.

#include "plan/slices.hpp"

#include "mask/random_layout.hpp"

#include "marble/error.hpp"
#include "marble/generators.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace marble {
namespace {

constexpr std::int32_t kBlock = 4;

Plan plan_of(const Layout& layout, std::int32_t ring, Placement placement, Strategy strategy,
             std::int64_t fetch_tokens = 0) {
  return make_plan(
      layout, {}, {.ring = ring},
      {.placement = placement, .strategy = strategy, .block = kBlock, .stripe = kBlock, .fetch_tokens = fetch_tokens});
}

/// Rows in whole blocks that ring rank r fetches in a step, and from how many ranks.
struct Fetched {
  std::int64_t rows = 0;
  std::size_t ranks = 0;
};

Fetched fetched(const Plan& plan, std::int64_t r, std::int32_t step) {
  const LayerPlan& layer = plan.layers[0];
  Fetched result;
  for (std::int64_t key = 0; key < plan.mesh.ring; ++key) {
    const PairDemand& demand = demand_of(plan, layer, r, key);
    if (key == r || demand.slice != step) continue;
    const std::int64_t blocks = layer.strategy == Strategy::alltoall
                                    ? demand.needed_blocks
                                    : (fetched_rows(plan, layer, r, key) + kBlock - 1) / kBlock;
    result.rows += blocks * kBlock;
    ++result.ranks;
  }
  return result;
}

TEST(SlicesTest, EveryNeededKeyTravelsInOneStepAndStepsStayBelowTheCap) {
  for (std::uint32_t seed = 0; seed < 20; ++seed)
    for (const Placement placement : {Placement::contiguous, Placement::striped, Placement::dealt})
      for (const Strategy strategy : {Strategy::alltoall, Strategy::allgather})
        for (const std::int64_t cap : {0, 5, 13}) {
          const Plan plan = plan_of(testing::random_layout(seed), 5, placement, strategy, cap);
          const LayerPlan& layer = plan.layers[0];
          const std::int64_t limit = cap > 0 ? cap : plan.rows;
          std::int64_t largest = 0;
          for (std::int64_t r = 0; r < plan.mesh.ring; ++r) {
            for (std::int64_t key = 0; key < plan.mesh.ring; ++key)
              EXPECT_EQ(demand_of(plan, layer, r, key).slice > 0, key != r && fetched_rows(plan, layer, r, key) > 0);
            for (std::int32_t step = 1; step <= layer.num_slices; ++step) {
              const Fetched of_step = fetched(plan, r, step);
              largest = std::max(largest, of_step.rows);
              if (of_step.ranks > 1) {
                EXPECT_LE(of_step.rows, limit);
              }
            }
          }
          EXPECT_EQ(layer.slot_rows, largest);
        }
}

TEST(SlicesTest, ARingMovesOneDistanceAStep) {
  const Plan plan = plan_of(testing::random_layout(7), 5, Placement::contiguous, Strategy::ring);
  for (std::int64_t r = 0; r < plan.mesh.ring; ++r)
    for (std::int64_t d = 1; d < plan.mesh.ring; ++d) {
      const std::int64_t key = behind(plan, r, d);
      if (fetched_rows(plan, plan.layers[0], r, key) > 0) {
        EXPECT_EQ(demand_of(plan, plan.layers[0], r, key).slice, d);
      }
    }
}

TEST(SlicesTest, PeersOfAStepAreThoseOfTheDemandBothWays) {
  const Plan plan = plan_of(testing::random_layout(11), 6, Placement::dealt, Strategy::alltoall, 8);
  const LayerPlan& layer = plan.layers[0];
  const StepPeers peers(plan, layer);
  for (std::int32_t step = 1; step <= layer.num_slices; ++step)
    for (std::int32_t r = 0; r < plan.mesh.ring; ++r) {
      std::vector<std::int32_t> sources, targets;
      for (std::int32_t other = 0; other < plan.mesh.ring; ++other) {
        if (demand_of(plan, layer, r, other).slice == step) sources.push_back(other);
        if (demand_of(plan, layer, other, r).slice == step) targets.push_back(other);
      }
      EXPECT_THAT(peers.sources(r, step), ::testing::UnorderedElementsAreArray(sources));
      EXPECT_THAT(peers.targets(r, step), ::testing::UnorderedElementsAreArray(targets));
    }
}

TEST(SlicesTest, RanksThatNeedDifferentAmountsTakeFewSteps) {
  // Long videos, each split over some of the ranks: cut by distances, as before version 4 of plans, 14 steps.
  const Plan plan =
      make_plan(generate("bagel-longvideo", std::int64_t{1} << 22, 0), model_of(generator("bagel-longvideo")),
                {.ring = 32}, {.placement = Placement::dealt, .strategy = Strategy::alltoall});
  EXPECT_LE(plan.layers[0].num_slices, 8);
}

}  // namespace
}  // namespace marble

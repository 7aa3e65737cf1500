// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/cost.hpp"

#include "marble/attention.hpp"
#include "marble/backend.hpp"
#include "marble/generators.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace marble {
namespace {

/// Round numbers: one full tile of a head of 128 forward takes 4 x 128^3 operations / 8388.608 GFLOP/s = 1000 ns, and
/// backward 2500 ns; partial ones take twice as long; 1 byte a ns inside a node, 0.1 across, 1000 in memory.
Hardware simple_hardware() {
  Hardware hardware;
  hardware.forward_full_gflops = hardware.backward_full_gflops = 8'388;
  hardware.forward_partial_gflops = hardware.backward_partial_gflops = 4'194;
  hardware.node_mbytes_per_s = 1'000;
  hardware.network_mbytes_per_s = 100;
  hardware.memory_mbytes_per_s = 1'000'000;
  hardware.step_ns = 7;
  hardware.exchange_ns = 11;
  hardware.range_ns = 0;
  return hardware;
}

/// One bidirectional sample: all tiles are full.
Layout full_layout(std::int64_t tokens) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::full, tokens}});
  return layout;
}

Plan simple_plan(const Mesh& mesh, const Model& model, Strategy strategy) {
  return make_plan(full_layout(512), model, mesh,
                   {.placement = Placement::contiguous, .strategy = strategy, .hardware = simple_hardware()});
}

constexpr std::int64_t kTile = 4 * 128 * 128 * 128 / 8'388;  // ns, forward
constexpr std::int64_t kBackTile = 10 * 128 * 128 * 128 / 8'388;

/// Bytes that memory reads and writes.
constexpr std::int64_t memory_ns(std::int64_t bytes) {
  return bytes / 1000;
}

TEST(CostTest, ARingOverlapsEachHopWithTheWorkBeforeIt) {
  const Model model{.heads = 2, .kv_heads = 1, .head_dim = 128};
  const LayerCost cost = estimate(simple_plan({.ring = 2, .ranks_per_node = 2}, model, Strategy::ring));
  // Each rank: 256 queries, 2 x 2 tiles a step, two heads. A hop: 256 rows x k and v x 128 x 2 bytes at 1 byte a ns.
  ASSERT_EQ(cost.forward.steps.size(), 2U);
  EXPECT_NEAR(static_cast<double>(cost.forward.steps[0].compute_ns), 8 * kTile, 8);
  EXPECT_EQ(cost.forward.steps[0].hop_ns, 256 * 2 * 128 * 2);
  EXPECT_EQ(cost.forward.steps[0].step_ns, 256 * 2 * 128 * 2 + 7);  // the hop is longer than the work
  EXPECT_EQ(cost.forward.steps[1].hop_ns, 0);
  EXPECT_EQ(cost.forward.steps[1].step_ns, cost.forward.steps[1].compute_ns + 7);
  EXPECT_EQ(cost.forward.enter_ns + cost.forward.leave_ns, 0);
  // Backward fetches again, and the only return has no step left to hide under, but the cast of dQ: fp32 of the same
  // rows, which are added to sums when they have come.
  ASSERT_EQ(cost.backward.steps.size(), 2U);
  EXPECT_NEAR(static_cast<double>(cost.backward.steps[0].compute_ns), 8 * kBackTile, 8);
  EXPECT_EQ(cost.backward.steps[0].hop_ns, 256 * 2 * 128 * 2);
  const std::int64_t give_back = 256 * 2 * 128 * 4;
  EXPECT_EQ(cost.backward.return_ns, give_back - memory_ns(256 * 2 * 128 * (4 + 2)) + memory_ns(3 * give_back));
  EXPECT_EQ(cost.backward.steps[0].memory_ns, 0);
  EXPECT_EQ(cost.backward.steps[1].memory_ns, memory_ns(give_back));  // what it adds into is cleared
  EXPECT_EQ(cost.backward.leave_ns, 0);
}

TEST(CostTest, OwnKeysHideTheLastReturnWhereItTakesLongerThanAUnitOfWork) {
  const Model model{.heads = 2, .kv_heads = 1, .head_dim = 128};
  const auto backward = [&](std::int64_t multiprocessors) {
    Hardware hardware = simple_hardware();
    hardware.multiprocessors = multiprocessors;
    return estimate(make_plan(full_layout(512), model, {.ring = 2, .ranks_per_node = 2},
                              {.placement = Placement::contiguous, .strategy = Strategy::ring, .hardware = hardware}))
        .backward;
  };
  // A unit is one of two key blocks, with two query blocks and two heads: 4 tiles, on one multiprocessor.
  const std::int64_t give_back = 256 * 2 * 128 * 4;
  const auto most = static_cast<std::int64_t>(give_back / (4 * kBackTile));
  EXPECT_EQ(backward(most + 1).steps.size(), 2U);
  const PassCost split = backward(most - 1);
  ASSERT_EQ(split.steps.size(), 3U);
  EXPECT_NEAR(static_cast<double>(split.steps[0].compute_ns), 8.0 / 3 * kBackTile, 8);
  EXPECT_NEAR(static_cast<double>(split.steps[1].compute_ns), 8 * kBackTile, 8);
  EXPECT_NEAR(static_cast<double>(split.steps[2].compute_ns), 16.0 / 3 * kBackTile, 8);
  EXPECT_EQ(split.steps[2].step_ns, give_back + memory_ns(3 * give_back) + 7);  // the return is longer than the work
  EXPECT_EQ(split.return_ns, 0);
}

/// Rank 0 works long in the first step and not at all in the second, rank 1 the other way round: no step's slowest rank
/// holds the other up, because rank 1 waits for rank 0's keys and not for its work.
TEST(CostTest, RanksWaitForKeysAndNotForEachOthersWork) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::full, 1024}, {Mode::causal, 1024}});
  Hardware hardware = simple_hardware();
  hardware.node_mbytes_per_s = 10'000'000;
  hardware.step_ns = 0;
  const Plan plan = make_plan(layout, {.heads = 8, .kv_heads = 1, .head_dim = 128}, {.ring = 2, .ranks_per_node = 2},
                              {.canonical = Canonical::sequence,
                               .placement = Placement::contiguous,
                               .strategy = Strategy::ring,
                               .hardware = hardware});
  const PassCost forward = estimate(plan).forward;
  // Tiles of 8 heads: rank 0 has 64; rank 1 has 28, and 8 partial ones at twice their time, then 64.
  EXPECT_NEAR(static_cast<double>(forward.steps[0].compute_ns), 64 * 8.0 * kTile, 300);
  EXPECT_NEAR(static_cast<double>(forward.steps[1].compute_ns), 64 * 8.0 * kTile, 300);
  EXPECT_NEAR(static_cast<double>(forward.total_ns()), (28 + 16 + 64) * 8.0 * kTile, 300);
}

TEST(CostTest, BackwardHidesTheReturnOfTheStepBefore) {
  const Model model{.heads = 1, .kv_heads = 1, .head_dim = 128};
  const LayerCost cost = estimate(simple_plan({.ring = 4, .ranks_per_node = 4}, model, Strategy::ring));
  const std::int64_t fetch = 128 * 2 * 128 * 2, give_back = 128 * 2 * 128 * 4;
  ASSERT_EQ(cost.backward.steps.size(), 4U);
  EXPECT_EQ(cost.backward.steps[0].hop_ns, fetch);
  EXPECT_EQ(cost.backward.steps[1].hop_ns, fetch);
  EXPECT_EQ(cost.backward.steps[2].hop_ns, fetch + give_back);
  EXPECT_EQ(cost.backward.steps[3].hop_ns, give_back);
  EXPECT_EQ(cost.backward.return_ns, give_back - memory_ns(128 * 128 * (4 + 2)) + memory_ns(3 * give_back));
  EXPECT_EQ(cost.backward.steps[2].memory_ns, memory_ns(give_back) + memory_ns(3 * give_back));
  EXPECT_EQ(cost.total_ns(), cost.forward.total_ns() + cost.backward.total_ns());
}

TEST(CostTest, AHopAcrossNodesTakesTheSlowerLink) {
  const Model model{.heads = 1, .kv_heads = 1, .head_dim = 128};
  const auto hop = [&](std::int32_t ranks_per_node) {
    const Mesh mesh{.ring = 4, .ranks_per_node = ranks_per_node};
    return estimate(simple_plan(mesh, model, Strategy::ring)).forward.steps[0].hop_ns;
  };
  EXPECT_EQ(hop(4), 128 * 2 * 128 * 2);
  EXPECT_EQ(hop(2), 10 * 128 * 2 * 128 * 2);  // of two ranks in a node, one receives from the other node
  EXPECT_EQ(hop(1), hop(2));
}

TEST(CostTest, UlyssesExchangesHeadsBeforeAndAfter) {
  const Model model{.heads = 4, .kv_heads = 2, .head_dim = 128};
  const LayerCost cost = estimate(simple_plan({.ring = 1, .ulysses = 2, .ranks_per_node = 2}, model, Strategy::ring));
  // 256 rows; half of 4 query and twice 2 key heads leave. Out: half the query heads and their lse. What leaves is
  // packed and what comes back unpacked, read and written.
  const auto exchange = [](std::int64_t row) { return 256 * row + 11 + memory_ns(2 * 256 * row); };
  EXPECT_EQ(cost.forward.enter_ns, exchange((2 + 2 * 1) * 128 * 2));
  EXPECT_EQ(cost.forward.leave_ns, exchange(2 * 128 * 2 + 2 * 4));
  EXPECT_EQ(cost.backward.enter_ns, exchange((2 * 2 + 2 * 1) * 128 * 2 + 2 * 2 * 4));
  EXPECT_EQ(cost.backward.leave_ns, exchange((2 + 2 * 1) * 128 * 2));
  ASSERT_EQ(cost.forward.steps.size(), 1U);
  EXPECT_NEAR(static_cast<double>(cost.forward.steps[0].compute_ns), 16 * 2 * kTile, 32);
}

TEST(CostTest, SumsOfReplicatedKeyHeadsAreReadAndWritten) {
  const Model model{.heads = 2, .kv_heads = 1, .head_dim = 128};
  const PassCost backward =
      estimate(simple_plan({.ring = 1, .ulysses = 2, .ranks_per_node = 2}, model, Strategy::ring)).backward;
  // 256 rows of dq in 16 bits and of dk and dv in fp32; the owner adds these to sums.
  const std::int64_t q = 256 * 128 * 2, keys = 256 * 2 * 128 * 4;
  EXPECT_EQ(backward.leave_ns, q + keys + 11 + memory_ns(2 * q + 3 * keys));
}

TEST(CostTest, BackwardClearsAndCastsWhatItAddsInto) {
  const Model model{.heads = 4, .kv_heads = 2, .head_dim = 128};
  const LayerCost cost = estimate(simple_plan({}, model, Strategy::ring));
  const std::int64_t q = 512 * 4 * 128, k = 512 * 2 * 128;  // elements
  EXPECT_EQ(cost.forward.memory_ns(), 0);
  EXPECT_EQ(cost.backward.prepare_ns, memory_ns(2 * q * 2 + (q + 2 * k) * 4));
  EXPECT_EQ(cost.backward.finish_ns, memory_ns(q * (4 + 2)) + memory_ns(2 * k * (4 + 2)));
  EXPECT_EQ(cost.memory_ns(), cost.backward.prepare_ns + cost.backward.finish_ns);
  EXPECT_EQ(cost.backward.total_ns(), cost.backward.steps_ns() + cost.memory_ns());
}

TEST(CostTest, UnevenHeadsCostWhatTheBusiestRankHas) {
  const auto compute = [&](std::int32_t heads, std::int32_t ulysses) {
    const Model model{.heads = heads, .kv_heads = 1, .head_dim = 128};
    return estimate(simple_plan({.ring = 1, .ulysses = ulysses}, model, Strategy::ring)).compute_ns();
  };
  EXPECT_EQ(compute(7, 2), compute(8, 2));
  EXPECT_GT(compute(7, 1), compute(6, 1));
}

TEST(CostTest, KeepingSavesExchangesInBackward) {
  const auto plan = [](Keep keep) {
    return make_plan(
        full_layout(2048), {.heads = 4, .kv_heads = 2, .head_dim = 128}, {.ring = 4, .ulysses = 2},
        {.placement = Placement::contiguous, .strategy = Strategy::ring, .hardware = simple_hardware(), .keep = keep});
  };
  const Plan nothing = plan(Keep::nothing), scattered = plan(Keep::scattered), fetched = plan(Keep::fetched);
  EXPECT_LT(estimate(scattered).backward.enter_ns, estimate(nothing).backward.enter_ns);
  EXPECT_LT(estimate(fetched).backward.steps[0].hop_ns, estimate(scattered).backward.steps[0].hop_ns);
  EXPECT_EQ(estimate(fetched).forward.total_ns(), estimate(nothing).forward.total_ns());
}

/// What the executor takes on the fullest rank, callers' tensors included.
std::int64_t executor_bytes(const Plan& plan, DType dtype) {
  const auto backend = make_cpu_backend(1);
  const std::int64_t heads = plan.model.heads, kv_heads = plan.model.kv_heads;
  const std::int64_t row = (4 * heads + 4 * kv_heads) * plan.model.head_dim * size_of(dtype) + heads * 4;
  std::int64_t largest = 0;
  for (std::int32_t rank = 0; rank < plan.mesh.num_ranks(); ++rank) {
    const RankPlan rank_plan = make_rank_plan(plan, rank);
    largest = std::max(largest, workspace_bytes(rank_plan, dtype, *backend) + saved_bytes(rank_plan, dtype));
  }
  return plan.rows * row + largest;
}

TEST(CostTest, MemoryIsWhatTheExecutorTakes) {
  const Layout layout = generate("bagel-mix", 32768, 0);
  for (const Strategy strategy : {Strategy::ring, Strategy::alltoall, Strategy::allgather})
    for (const Keep keep : {Keep::nothing, Keep::scattered, Keep::fetched})
      for (const auto& [ring, ulysses, heads, kv_heads] :
           {std::array{4, 1, 4, 2}, std::array{2, 2, 4, 2}, std::array{2, 4, 28, 4}, std::array{3, 3, 7, 1}}) {
        const Plan plan = make_plan(layout, {.heads = heads, .kv_heads = kv_heads, .head_dim = 64},
                                    {.ring = ring, .ulysses = ulysses},
                                    {.placement = Placement::contiguous, .strategy = strategy, .keep = keep});
        const auto exact = static_cast<double>(executor_bytes(plan, DType::bf16));
        EXPECT_NEAR(static_cast<double>(memory_bytes(plan, DType::bf16)) / exact, 1.0, 0.02)
            << to_string(strategy) << " " << to_string(keep) << " " << ring << " x " << ulysses;
      }
}

TEST(MaskPropertiesTest, LocalityAndDensityCountWhatIsSeen) {
  const Plan dense = simple_plan({.ring = 4}, {}, Strategy::ring);
  EXPECT_DOUBLE_EQ(mask_properties(dense).locality, 1.0);
  EXPECT_DOUBLE_EQ(mask_properties(dense).visible_share, 1.0);
  EXPECT_DOUBLE_EQ(mask_properties(dense).full_share, 1.0);
  Layout layout;
  for (int s = 0; s < 4; ++s) layout.add_sample(std::vector<Span>{{Mode::full, 128}});
  const Plan local = make_plan(layout, {}, {.ring = 4}, {.placement = Placement::contiguous});
  EXPECT_DOUBLE_EQ(mask_properties(local).locality, 0.0);
  EXPECT_DOUBLE_EQ(mask_properties(local).visible_share, 0.25);
}

TEST(MaskPropertiesTest, HeadBudgetIsHowFarUlyssesGoes) {
  const HeadBudget bagel = head_budget({.heads = 28, .kv_heads = 4});
  EXPECT_EQ(bagel.without_replication, 4);
  EXPECT_EQ(bagel.largest, 28);
  EXPECT_EQ(bagel.even, (std::vector<std::int32_t>{1, 2, 4}));
}

TEST(SmallestShardTest, IsWhereWorkAndHopTakeEquallyLong) {
  const Model model{.heads = 2, .kv_heads = 1, .head_dim = 128};
  const Plan plan = simple_plan({.ring = 4, .ranks_per_node = 4}, model, Strategy::ring);
  // S keys take 512 S ns to come; S^2 / 128^2 tiles of two heads take 2000 ns each: S = 512 x 128^2 / 2000 = 4194.
  EXPECT_NEAR(static_cast<double>(smallest_shard(plan).forward_node), 4194.0, 128.0);
  EXPECT_NEAR(static_cast<double>(smallest_shard(plan).forward_network), 41943.0, 128.0);
  // Backward: 1536 S ns (k and v come, dk and dv go back) against 5000 ns a tile.
  EXPECT_NEAR(static_cast<double>(smallest_shard(plan).backward_node), 5033.0, 128.0);
  EXPECT_EQ(smallest_shard(simple_plan({}, model, Strategy::ring)).forward_node, 0);
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.hpp"

#include "mask/random_layout.hpp"
#include "plan/placed_layer.hpp"

#include "marble/error.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace marble {
namespace {

constexpr std::array kPlacements = {Placement::contiguous, Placement::zigzag, Placement::striped, Placement::ptrr};

TEST(PlacementTest, EveryTokenIsPlacedOnceInAscendingRowsAndNoRankOverflows) {
  for (const std::int64_t tokens : {0, 1, 7, 16, 17, 100, 129})
    for (const std::int32_t ring : {1, 2, 3, 4, 5, 8, 40})
      for (const Placement placement : kPlacements) {
        const std::int64_t block = 8;
        std::vector<std::int64_t> work(static_cast<std::size_t>((tokens + block - 1) / block));
        std::iota(work.begin(), work.end(), 1);
        const auto pieces =
            place(placement, {.num_tokens = tokens, .ring = ring, .block = block, .stripe = 2, .block_work = work});
        std::vector<std::int64_t> rows(static_cast<std::size_t>(ring), 0);
        std::int64_t next = 0;
        for (const Piece& piece : pieces) {
          EXPECT_EQ(piece.canonical, next);
          EXPECT_EQ(piece.row, rows[static_cast<std::size_t>(piece.ring_rank)]);
          next += piece.length;
          rows[static_cast<std::size_t>(piece.ring_rank)] += piece.length;
        }
        EXPECT_EQ(next, tokens);
        for (const std::int64_t held : rows) EXPECT_LE(held, ring_rows(tokens, ring, block));
      }
}

TEST(PlacementTest, PtrrDealsBlocksByFallingWorkInReversingRounds) {
  const std::vector<std::int64_t> work = {1, 8, 3, 6, 5, 4, 7, 2};
  const auto pieces = place(Placement::ptrr, {.num_tokens = 8, .ring = 2, .block = 1, .stripe = 1, .block_work = work});
  std::vector<std::int32_t> owner;
  for (const Piece& piece : pieces) owner.insert(owner.end(), static_cast<std::size_t>(piece.length), piece.ring_rank);
  // By work: block 1 (8), 6 (7) | 3 (6), 4 (5) | 5 (4), 2 (3) | 7 (2), 0 (1): ranks 0 1 | 1 0 | 0 1 | 1 0.
  EXPECT_EQ(owner, (std::vector<std::int32_t>{0, 0, 1, 1, 0, 0, 1, 1}));
}

TEST(PlacementTest, RowsDependOnlyOnTokensMeshAndBlock) {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    Layout layout = testing::random_layout(seed);
    layout.add_sample(std::vector<Span>{{Mode::causal, 400 - layout.num_tokens()}});
    for (const Placement placement : kPlacements)
      EXPECT_EQ(
          make_plan(layout, {.heads = 3}, {.ring = 3, .ulysses = 3}, {.placement = placement, .block = 16, .stripe = 8})
              .rows,
          48);
  }
}

TEST(BalanceTest, ContiguousCausalShardsDoOneTwoThreeFour) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::causal, 4096}});
  const Plan plan = make_plan(layout, {}, {.ring = 4}, {.placement = Placement::contiguous});
  std::vector<std::int64_t> total(4, 0);
  for (const auto& step : step_pairs(plan))
    for (std::size_t r = 0; r < 4; ++r) total[r] += step[r];
  const std::int64_t unit = 1024 * 1024, triangle = 1024 * 1025 / 2;
  EXPECT_EQ(total, (std::vector<std::int64_t>{triangle, unit + triangle, 2 * unit + triangle, 3 * unit + triangle}));
  const Plan level = make_plan(layout, {}, {.ring = 4}, {.placement = Placement::ptrr});
  EXPECT_LE(balance(level).busiest_over_mean_pairs, 1.001);
}

TEST(BalanceTest, StepPairsEqualBruteForce) {
  for (std::uint32_t seed = 0; seed < 15; ++seed) {
    const Layout layout = testing::random_layout(seed);
    const std::vector<TokenTracks> tracks = testing::token_tracks(layout);
    for (const MaskRule& rule : testing::mask_rules()) {
      const Plan plan = make_plan(layout, {.layers = {LayerKind{rule}}}, {.ring = 3}, {.block = 4, .stripe = 4});
      const auto steps = step_pairs(plan);
      std::int64_t sum = 0;
      for (std::int32_t r = 0; r < 3; ++r)
        for (std::size_t s = 0; s < steps.size(); ++s) {
          std::int64_t pairs = 0;
          for (const std::int64_t q : rank_positions(plan, r))
            for (const std::int64_t k : rank_positions(plan, (r + 3 - static_cast<std::int32_t>(s)) % 3))
              pairs += is_legal(rule, tracks[static_cast<std::size_t>(q)], tracks[static_cast<std::size_t>(k)]);
          EXPECT_EQ(steps[s][static_cast<std::size_t>(r)], pairs);
          sum += pairs;
        }
      EXPECT_EQ(sum, count_legal_pairs(layout, rule));
    }
  }
}

TEST(PlanRefusalTest, NamesTheValueAndWhatWouldBeAccepted) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::causal, 10}});
  const auto expect_refused = [&](const Model& model, const Mesh& mesh, const PlanOptions& options, const char* part) {
    try {
      static_cast<void>(make_plan(layout, model, mesh, options));
      FAIL() << "accepted: " << part;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect_refused({.heads = 7, .kv_heads = 2}, {}, {}, "heads 7 is not a multiple of kv_heads 2");
  expect_refused({}, {.ring = 0}, {}, "ring 0 is below 1");
  expect_refused({.heads = 4}, {.ulysses = 5}, {}, "ulysses 5 exceeds the 4 query heads");
  expect_refused({.head_dim = 257}, {}, {}, "head_dim 257");
  expect_refused({}, {}, {.stripe = 96}, "stripe 96 does not divide block 128");
  expect_refused({.order_dependent = true}, {}, {.placement = Placement::ptrr}, "use contiguous");
  expect_refused({.order_dependent = true}, {}, {.canonical = Canonical::stack}, "use sequence");
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.hpp"

#include "mask/random_layout.hpp"
#include "plan/chunk_search.hpp"
#include "plan/placed_layer.hpp"

#include "marble/error.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace marble {
namespace {

constexpr std::array kPlacements = {Placement::contiguous, Placement::zigzag, Placement::striped,
                                    Placement::ptrr,       Placement::chunks, Placement::dealt};

/// Places one causal layer's layout.
std::vector<Piece> place_layout(const Layout& layout, Placement placement, std::int32_t ring, std::int64_t block,
                                std::int64_t stripe) {
  const CanonicalOrder order = canonical_order(layout, Canonical::stack);
  const std::vector<LayerVisibility> layers = {{make_visibility(order, Canonical::stack, {}), 1}};
  return place(placement, {.order = order, .layers = layers, .ring = ring, .block = block, .stripe = stripe});
}

void expect_placed_once(const std::vector<Piece>& pieces, std::int64_t tokens, std::int32_t ring, std::int64_t block) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(ring), 0);
  std::int64_t next = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.canonical, next);
    EXPECT_EQ(piece.row, rows[static_cast<std::size_t>(piece.ring_rank)]);
    EXPECT_GT(piece.length, 0);
    next += piece.length;
    rows[static_cast<std::size_t>(piece.ring_rank)] += piece.length;
  }
  EXPECT_EQ(next, tokens);
  for (const std::int64_t held : rows) EXPECT_LE(held, ring_rows(tokens, ring, block));
}

TEST(PlacementTest, EveryTokenIsPlacedOnceInAscendingRowsAndNoRankOverflows) {
  for (std::uint32_t seed = 0; seed < 12; ++seed)
    for (const std::int64_t fill : {0, 1, 7, 100, 129}) {
      Layout layout = testing::random_layout(seed);
      layout.add_sample(std::vector<Span>{{Mode::causal, fill}});
      for (const std::int32_t ring : {1, 2, 3, 4, 5, 8, 40})
        for (const Placement placement : kPlacements) {
          SCOPED_TRACE(fmt::format("seed {} fill {} ring {} {}", seed, fill, ring, to_string(placement)));
          expect_placed_once(place_layout(layout, placement, ring, 8, 2), layout.num_tokens(), ring, 8);
        }
    }
}

TEST(PlacementTest, PtrrDealsBlocksByFallingWorkInRounds) {
  // One causal token a block: the work of block i is i + 1. Rounds alternate, so that both ranks sum to 18.
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::causal, 8}});
  std::vector<std::int32_t> owner;
  for (const Piece& piece : place_layout(layout, Placement::ptrr, 2, 1, 1))
    owner.insert(owner.end(), static_cast<std::size_t>(piece.length), piece.ring_rank);
  EXPECT_EQ(owner, (std::vector<std::int32_t>{0, 1, 1, 0, 0, 1, 1, 0}));
}

TEST(PlacementTest, DealtKeepsLightSamplesWhole) {
  Layout layout;
  for (int s = 0; s < 64; ++s) layout.add_sample(std::vector<Span>{{Mode::causal, 64 + s % 7}});
  const Plan plan =
      make_plan(layout, {}, {.ring = 4},
                {.placement = Placement::dealt, .strategy = Strategy::alltoall, .block = 16, .stripe = 16});
  EXPECT_LE(balance(plan).busiest_over_mean_pairs, 1.02);
  EXPECT_LE(exchange_tokens(plan).kv, layout.num_tokens() / 20);
}

TEST(PlacementTest, DealtSplitsASampleThatOutweighsARank) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::causal, 3000}});
  for (int s = 0; s < 20; ++s) layout.add_sample(std::vector<Span>{{Mode::causal, 50}});
  const Plan plan = make_plan(layout, {}, {.ring = 4}, {.placement = Placement::dealt, .block = 16, .stripe = 16});
  EXPECT_LE(balance(plan).busiest_over_mean_pairs, 1.05);
}

TEST(PlacementTest, ChunksNeverLoseToZigzagOnTheCostTheyMinimise) {
  Layout layout;
  for (const std::int64_t tokens : {700, 2500, 400})
    layout.add_sample(std::vector<Span>{{Mode::causal, tokens}, {Mode::noise, 300}, {Mode::full, 300}});
  Hardware hardware;
  hardware.range_ns = 0;  // next to a pack as small as this one, any cost of a range is large
  const auto steps = [&](Placement placement) {
    return balance(make_plan(layout, {}, {.ring = 4},
                             {.placement = placement, .hardware = hardware, .block = 16, .stripe = 16}))
        .step_busiest_over_mean_pairs;
  };
  EXPECT_LE(steps(Placement::chunks), steps(Placement::zigzag));
  EXPECT_LE(steps(Placement::chunks), 1.1);
}

TEST(ChunkSearchTest, SwapsKeepEverySumExact) {
  std::mt19937 random(1);
  ChunkPairs pairs{24, std::vector<std::int64_t>(24 * 24)};
  for (std::int64_t& value : pairs.pairs) value = static_cast<std::int64_t>(random() % 1000);
  std::vector<std::int32_t> owners;
  for (int c = 0; c < 24; ++c) owners.push_back(c % 4);
  ChunkSearch search(pairs, owners, 4);
  const std::int64_t before = search.cost();
  search.improve(std::vector<std::int32_t>(24, 0), 1'000'000);
  EXPECT_LT(search.cost(), before);
  EXPECT_EQ(ChunkSearch(pairs, search.owners(), 4).cost(), search.cost());
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

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The balances and bytes that the documents state, on whole packs of 1M tokens and more.

#include "marble/generators.hpp"
#include "marble/plan.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace marble {
namespace {

constexpr std::int64_t kMillion = std::int64_t{1} << 20;

Plan plan_of(const std::string& name, std::int64_t tokens, std::int32_t ring, Placement placement, Strategy strategy,
             std::optional<Canonical> canonical = {}) {
  const GeneratorInfo& info = generator(name);
  const Model model{.heads = info.heads, .kv_heads = info.kv_heads, .head_dim = info.head_dim};
  return make_plan(generate(name, tokens, 0), model, {.ring = ring},
                   {.canonical = canonical, .placement = placement, .strategy = strategy});
}

double shards_sent(const Plan& plan) {
  return static_cast<double>(exchange_tokens(plan).kv) / static_cast<double>(plan.layout.num_tokens());
}

struct DealtCase {
  std::int64_t tokens;
  std::int32_t ring;
  double busiest, sent;
};

class DealtNumbers : public ::testing::TestWithParam<std::string> {};

TEST_P(DealtNumbers, DocumentsAndMolmo2AreLevelAndSendFewKeys) {
  for (const DealtCase& c : {DealtCase{4 * kMillion, 8, 1.02, 0.15}, DealtCase{4 * kMillion, 32, 1.02, 0.15},
                             DealtCase{kMillion, 16, 1.03, 0.4}, DealtCase{kMillion, 32, 1.06, 0.7}}) {
    const Plan plan = plan_of(GetParam(), c.tokens, c.ring, Placement::dealt, Strategy::alltoall);
    SCOPED_TRACE(fmt::format("{} tokens over {}", c.tokens, c.ring));
    EXPECT_LE(balance(plan).busiest_over_mean, c.busiest);
    // Videos of up to a shard's length over 32 ranks: docs/balance.md states what is reached instead.
    if (GetParam() == "molmo2-video" && c.tokens == kMillion && c.ring == 32) continue;
    EXPECT_LE(shards_sent(plan), c.sent);
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Generators, DealtNumbers,
                         ::testing::Values("qwen3vl-docs", "gemma3-docs", "molmo2-video", "molmo2-images",
                                           "molmo2-sft"),
                         test_name);

class FewLongSamples : public ::testing::TestWithParam<std::string> {};

TEST_P(FewLongSamples, DealtStaysNearPtrrWithFewerBytesThanARing) {
  for (const std::int32_t ring : {8, 32}) {
    SCOPED_TRACE(fmt::format("over {}", ring));
    const Plan dealt = plan_of(GetParam(), 4 * kMillion, ring, Placement::dealt, Strategy::alltoall);
    const Plan ptrr = plan_of(GetParam(), 4 * kMillion, ring, Placement::ptrr, Strategy::ring);
    EXPECT_LE(balance(dealt).busiest_over_mean, balance(ptrr).busiest_over_mean + 0.05);
    EXPECT_LT(exchange_tokens(dealt).kv, exchange_tokens(dealt).ring_kv);
  }
}

INSTANTIATE_TEST_SUITE_P(Generators, FewLongSamples,
                         ::testing::Values("qwen3vl-video", "gemma3-frames", "bagel-longvideo", "bagel-mix",
                                           "bagel-edit"),
                         test_name);

TEST(PtrrNumbers, LevelsLongVideoAndItsSteps) {
  const Balance level = balance(plan_of("bagel-longvideo", kMillion, 8, Placement::ptrr, Strategy::ring));
  EXPECT_LE(level.busiest_over_mean_pairs, 1.001);
  EXPECT_LE(level.step_busiest_over_mean, 1.03);
}

TEST(ChunkNumbers, StepsOfBagelPacksAreLevel) {
  for (const char* name : {"bagel-longvideo", "bagel-mix", "bagel-edit"})
    for (const std::int64_t millions : {1, 2, 4, 8}) {
      const Plan plan = plan_of(name, millions * kMillion, 8, Placement::chunks, Strategy::ring);
      EXPECT_LE(balance(plan).step_busiest_over_mean, 1.03) << name << " " << millions << "M";
    }
}

/// The paper's cost C without its overhead term, in legal pairs.
std::int64_t chunk_cost(const Plan& plan) {
  std::int64_t sum = 0;
  for (const std::vector<std::int64_t>& step : step_pairs(plan)) sum += *std::ranges::max_element(step);
  return sum;
}

/// 64 chunks a rank in sequence order, in rounds of R, every other round reversed.
Plan with_plain_chunks(Plan plan) {
  const std::int64_t ring = plan.mesh.ring, length = plan.layout.num_tokens() / (64 * ring);
  std::vector<std::int64_t> row(static_cast<std::size_t>(ring), 0);
  plan.pieces.clear();
  for (std::int64_t chunk = 0; chunk < 64 * ring; ++chunk) {
    const std::int64_t turn = chunk % ring, rank = chunk / ring % 2 == 0 ? turn : ring - 1 - turn;
    std::int64_t& next = row[static_cast<std::size_t>(rank)];
    plan.pieces.push_back({chunk * length, length, next, static_cast<std::int32_t>(rank)});
    next += length;
  }
  return plan;
}

TEST(ChunkNumbers, RefinedChunksBeatPlainOnesOnLongVideo) {
  for (const auto& [millions, gain] : {std::pair{4, 0.04}, {8, 0.07}}) {
    const Plan plan = plan_of("bagel-longvideo", millions * kMillion, 8, Placement::chunks, Strategy::ring);
    EXPECT_LE(static_cast<double>(chunk_cost(plan)),
              (1.0 - gain) * static_cast<double>(chunk_cost(with_plain_chunks(plan))))
        << millions << "M";
  }
}

TEST(StackNumbers, StackOrderLeavesFewPartialTiles) {
  const auto partial_share = [](Canonical canonical) {
    const Plan plan = plan_of("molmo2-video", kMillion / 2, 8, Placement::ptrr, Strategy::ring, canonical);
    std::int64_t full = 0, partial = 0;
    for (const PairDemand& demand : plan.layers[0].demand) {
      full += demand.full_tiles;
      partial += demand.partial_tiles;
    }
    return static_cast<double>(partial) / static_cast<double>(full + partial);
  };
  const double stack = partial_share(Canonical::stack), sequence = partial_share(Canonical::sequence);
  fmt::print("partial tiles of molmo2-video at 512k tokens: stack order {:.3f}, sequence order {:.3f}\n", stack,
             sequence);
  EXPECT_LE(stack, 0.08);
  EXPECT_GT(sequence, stack);
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "mask/visibility.hpp"

#include "mask/random_layout.hpp"

#include <gtest/gtest.h>

namespace marble {
namespace {

using testing::mask_rules;
using testing::random_layout;
using testing::token_tracks;

/// Pack position of each canonical index.
std::vector<std::int64_t> positions(const CanonicalOrder& order) {
  std::vector<std::int64_t> result;
  for (const CanonicalSpan& span : order.spans)
    for (std::int64_t i = 0; i < span.length; ++i) result.push_back(span.position + i);
  return result;
}

/// Compares every (query, key) of the visibility with the mask rule; each legal pair must be in exactly one entry.
void expect_exact(const Layout& layout, const CanonicalOrder& order, const Visibility& visibility,
                  const MaskRule& rule) {
  const std::vector<TokenTracks> tracks = token_tracks(layout);
  const std::vector<std::int64_t> position = positions(order);
  const auto n = static_cast<std::int64_t>(position.size());
  for (std::size_t s = 0; s < order.spans.size(); ++s)
    for (std::int64_t k = order.spans[s].canonical; k < order.spans[s].canonical_end(); ++k) {
      std::vector<int> times(static_cast<std::size_t>(n), 0);
      for (const VisibleEntry& entry : visibility.of_span(static_cast<std::int64_t>(s))) {
        if (k < entry.key_begin || k >= entry.key_end) continue;
        ASSERT_LT(entry.rule.lo(k), entry.rule.hi(k));
        for (std::int64_t q = entry.rule.lo(k); q < entry.rule.hi(k); ++q) ++times[static_cast<std::size_t>(q)];
      }
      for (std::int64_t q = 0; q < n; ++q)
        ASSERT_EQ(times[static_cast<std::size_t>(q)],
                  is_legal(rule, tracks[static_cast<std::size_t>(position[static_cast<std::size_t>(q)])],
                           tracks[static_cast<std::size_t>(position[static_cast<std::size_t>(k)])]))
            << "query " << q << " key " << k << " window " << rule.window << " clamp " << rule.clamp;
    }
}

std::int64_t brute_force_pairs(const Layout& layout, const MaskRule& rule) {
  const std::vector<TokenTracks> tracks = token_tracks(layout);
  std::int64_t pairs = 0;
  for (const TokenTracks& q : tracks)
    for (const TokenTracks& k : tracks) pairs += is_legal(rule, q, k);
  return pairs;
}

class VisibilityTest : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(VisibilityTest, EqualsTheMaskRulePairByPairInBothOrders) {
  const Layout layout = random_layout(GetParam());
  for (const Canonical canonical : {Canonical::sequence, Canonical::stack}) {
    const CanonicalOrder order = canonical_order(layout, canonical);
    for (const MaskRule& rule : mask_rules()) {
      expect_exact(layout, order, make_visibility(order, canonical, rule), rule);
      expect_exact(layout, order, make_visibility_pairwise(order, rule), rule);
    }
  }
}

TEST_P(VisibilityTest, CountsEqualBruteForce) {
  const Layout layout = random_layout(GetParam());
  for (const MaskRule& rule : mask_rules())
    EXPECT_EQ(count_legal_pairs(layout, rule), brute_force_pairs(layout, rule))
        << "window " << rule.window << " clamp " << rule.clamp;
}

TEST_P(VisibilityTest, PairsPerBlockSumTheQueriesOfEachBlock) {
  const Layout layout = random_layout(GetParam());
  const std::vector<TokenTracks> tracks = token_tracks(layout);
  for (const Canonical canonical : {Canonical::sequence, Canonical::stack}) {
    const CanonicalOrder order = canonical_order(layout, canonical);
    const std::vector<std::int64_t> position = positions(order);
    for (const MaskRule& rule : mask_rules()) {
      const Visibility visibility = make_visibility(order, canonical, rule);
      const std::int64_t block = 5;
      std::vector<std::int64_t> expected(static_cast<std::size_t>((order.num_tokens + block - 1) / block));
      for (std::size_t q = 0; q < position.size(); ++q)
        for (const TokenTracks& key : tracks)
          expected[q / block] += is_legal(rule, tracks[static_cast<std::size_t>(position[q])], key);
      EXPECT_EQ(pairs_per_block(visibility, order.num_tokens, block), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RandomLayouts, VisibilityTest, ::testing::Range(0U, 150U));

TEST(VisibilityFormTest, StackOrderHasOneRangeForEveryGeneratorsSamples) {
  using Modes = std::vector<Mode>;
  for (const Modes& modes : {Modes{Mode::causal, Mode::full, Mode::noise, Mode::branch},
                             Modes{Mode::causal, Mode::full, Mode::group, Mode::branch}})
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
      const Layout layout = random_layout(seed, {.ids = false, .modes = modes});
      const CanonicalOrder order = canonical_order(layout, Canonical::stack);
      EXPECT_TRUE(make_visibility(order, Canonical::stack, {}).single_range);
    }
}

TEST(VisibilityFormTest, WindowsWithNoiseNeedTracksInStackOrderOnly) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::causal, 9}, {Mode::noise, 5}, {Mode::full, 5}, {Mode::causal, 7}});
  const MaskRule window{.window = 6};
  EXPECT_TRUE(make_visibility(canonical_order(layout, Canonical::sequence), Canonical::sequence, window).single_range);
  EXPECT_FALSE(make_visibility(canonical_order(layout, Canonical::stack), Canonical::stack, window).single_range);
}

TEST(VisibilityFormTest, GroupsOfSeveralSpansNeedTracksInSequenceOrderOnly) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::group, 4}, {Mode::causal, 3}, {Mode::group, 4}, {Mode::causal, 3}});
  EXPECT_FALSE(make_visibility(canonical_order(layout, Canonical::sequence), Canonical::sequence, {}).single_range);
  EXPECT_TRUE(make_visibility(canonical_order(layout, Canonical::stack), Canonical::stack, {}).single_range);
}

}  // namespace
}  // namespace marble

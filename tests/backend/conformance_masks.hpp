// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Part of the conformance suite: which pairs are attended, in which placement and in how many works.

#include "backend/backend_conformance.hpp"

#include <random>

namespace marble::testing {

TEST_P(BackendConformance, AttendsEveryModeAloneInBothOrders) {
  const std::vector<std::vector<Span>> samples = {
      {{Mode::causal, 37}},
      {{Mode::full, 21}, {Mode::full, 18}},
      {{Mode::causal, 9}, {Mode::noise, 14}, {Mode::noise, 6}, {Mode::causal, 10}},
      {{Mode::causal, 3}, {Mode::group, 13}, {Mode::causal, 5}, {Mode::group, 17}, {Mode::causal, 4}},
      {{Mode::causal, 12}, {Mode::branch, 9}, {Mode::branch, 11}, {Mode::causal, 7}},
      {{Mode::noise, 8, 1}, {Mode::causal, 5}, {Mode::noise, 8, 1}, {Mode::noise, 4, 2}}};
  for (const std::vector<Span>& sample : samples)
    for (Canonical canonical : {Canonical::sequence, Canonical::stack}) {
      SCOPED_TRACE(::testing::Message() << to_string(sample[1 % sample.size()].mode) << ' ' << to_string(canonical));
      check(make_case(layout({sample, {{Mode::causal, 6}}}), canonical));
    }
}

TEST_P(BackendConformance, AttendsMixedModesByRangesAndByTracks) {
  AttentionCase by_ranges = mixed_case(Canonical::stack);
  ASSERT_FALSE(by_ranges.spec.use_tracks);
  check(by_ranges);
  AttentionCase by_tracks = by_ranges;
  by_tracks.spec.use_tracks = true;
  check(by_tracks);
  const AttentionCase needs_tracks = mixed_case(Canonical::sequence);
  ASSERT_TRUE(needs_tracks.spec.use_tracks);
  check(needs_tracks);
}

TEST_P(BackendConformance, AttendsWindowsWithAndWithoutClamp) {
  const Layout text_and_crops =
      layout({{{Mode::causal, 30}, {Mode::full, 12}, {Mode::causal, 14}}, {{Mode::causal, 9}}});
  for (std::int64_t window : {std::int64_t{1}, 5 * unit() + 1, 20 * unit(), 1000 * unit()})
    for (bool clamp : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "window " << window << " clamp " << clamp);
      check(make_case(text_and_crops, Canonical::sequence, {window, clamp}));
      check(mixed_case(Canonical::stack, {window, clamp}));
    }
}

TEST_P(BackendConformance, AttendsAnySubsetOfRowsAgainstAnySubsetsOfKeys) {
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    AttentionCase problem = mixed_case(seed % 2 == 0 ? Canonical::stack : Canonical::sequence);
    problem.seed = seed;
    std::mt19937 random(seed);
    std::erase_if(problem.spec.queries, [&](std::int64_t) { return random() % 3 == 0; });
    std::erase_if(problem.spec.works[0], [&](std::int64_t) { return random() % 4 == 0; });
    set_heads(problem, 2, 1);
    check(split_works(problem, 1 + seed % 4, 1 + static_cast<std::int64_t>(seed) * 7));
  }
}

TEST_P(BackendConformance, LeavesZerosWhereNothingIsLegal) {
  // Rows that only see keys which no work holds, query blocks that no key reaches, and works without keys.
  AttentionCase problem = make_case(layout({{{Mode::causal, 40}}, {{Mode::full, 25}}, {{Mode::causal, 20}}}));
  std::erase_if(problem.spec.works[0], [&](std::int64_t key) { return key < 20 * unit() || key >= 65 * unit(); });
  problem.spec.works = {{}, problem.spec.works[0], {}};
  check(problem);
  const AttentionResult result = run_attention(*backend(), problem, make_inputs(problem));
  EXPECT_EQ(result.lse.front(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(result.lse.back(), -std::numeric_limits<double>::infinity());
  for (const std::vector<double>* values : {&result.out, &result.dq}) {
    EXPECT_EQ(values->front(), 0.0);
    EXPECT_EQ(values->back(), 0.0);
  }
}

TEST_P(BackendConformance, LaunchesNothingForARankWithoutRowsOrKeys) {
  AttentionCase no_keys = mixed_case();
  no_keys.spec.works = {{}};
  check(no_keys);
  AttentionCase no_rows = mixed_case();
  no_rows.spec.queries.clear();
  check(no_rows);
  AttentionCase neither = no_rows;
  neither.spec.works = {{}, {}};
  neither.spec.pad_rows = 0;
  check(neither);
}

TEST_P(BackendConformance, TakesAnyLengthAndBlock) {
  for (std::int32_t block : {1, 7, 16, 100, 128, 256}) {
    for (std::int64_t tokens : {1, 2, 127, 129, 300}) {
      if (block == 1 && tokens > 127) continue;  // as many tiles as pairs
      SCOPED_TRACE(::testing::Message() << "block " << block << " tokens " << tokens);
      AttentionCase problem = make_case(layout_from_samples(
          std::vector<std::vector<Span>>{{{Mode::causal, tokens / 2}, {Mode::full, tokens - tokens / 2}}}));
      problem.spec.block = block;
      problem.spec.pad_rows = tokens % 2 == 0 ? 0 : block + 3;
      check(problem);
    }
  }
}

TEST_P(BackendConformance, AttendsKeysOfSeveralRanksWithPadsBetween) {
  // Keys of three ranks, each in whole blocks of its own; queries see blocks with pads whole and in part.
  for (bool use_tracks : {false, true}) {
    AttentionCase problem =
        make_case(layout({{{Mode::full, 21}, {Mode::causal, 5}}, {{Mode::causal, 30}, {Mode::full, 25}}}));
    problem.spec.use_tracks = use_tracks;
    const std::vector<std::int64_t> keys = problem.spec.works[0];
    std::vector<std::int64_t>& work = problem.spec.works[0];
    work.clear();
    const auto size = static_cast<std::int64_t>(keys.size());
    std::int64_t next = 0;
    for (const std::int64_t end : {11 * unit() + 3, 50 * unit() + 1, size}) {
      while (next < end) work.push_back(keys[static_cast<std::size_t>(next++)]);
      while (next < size && work.size() % static_cast<std::size_t>(block()) != 0) work.push_back(kPadKey);
    }
    set_heads(problem, 4, 2);
    check(problem);
  }
}

TEST_P(BackendConformance, LetsOneKeyMoveOnlyTheRowsThatMaySeeIt) {
  AttentionCase problem = mixed_case();
  const AttentionInputs before = make_inputs(problem);
  const auto dim = static_cast<std::size_t>(problem.spec.head_dim);
  const std::vector<double> still = run_attention(*backend(), problem, before).out;
  for (std::size_t key = 0; key < problem.spec.tokens.size(); key += 1 + problem.spec.tokens.size() / 9) {
    AttentionInputs after = before;
    for (std::size_t i = key * dim; i < (key + 1) * dim; ++i) after.v[i] += 1.0;
    const std::vector<double> moved = run_attention(*backend(), problem, after).out;
    for (std::size_t row = 0; row < problem.spec.tokens.size(); ++row) {
      const auto begin = static_cast<std::ptrdiff_t>(row * dim);
      const bool same = std::equal(still.begin() + begin, still.begin() + begin + static_cast<std::ptrdiff_t>(dim),
                                   moved.begin() + begin);
      EXPECT_NE(same, is_legal(problem.spec.rule, problem.spec.tokens[row], problem.spec.tokens[key]))
          << "row " << row << " key " << key;
    }
  }
}

}  // namespace marble::testing

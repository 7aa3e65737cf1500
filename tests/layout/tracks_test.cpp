// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/golden.hpp"

#include "marble/error.hpp"
#include "marble/generators.hpp"
#include "marble/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace marble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Layout from(const Tracks& tracks) {
  return layout_from_tracks(tracks.sample, tracks.segment, tracks.noise, tracks.position);
}

void expect_equal(const Tracks& a, const Tracks& b) {
  EXPECT_EQ(a.sample, b.sample);
  EXPECT_EQ(a.segment, b.segment);
  EXPECT_EQ(a.noise, b.noise);
  EXPECT_EQ(a.position, b.position);
}

void expect_round_trip(const Layout& layout) {
  const Tracks tracks = to_tracks(layout);
  const Layout back = from(tracks);
  expect_equal(to_tracks(back), tracks);
  EXPECT_EQ(back, normalize(layout));
  EXPECT_EQ(normalize(back), back);
}

/// Tracks of one sample with positions 0, 1, 2, ...
Tracks tracks_of(std::vector<std::int32_t> segment, std::vector<std::int32_t> noise) {
  Tracks tracks{std::vector<std::int32_t>(segment.size()), std::move(segment), std::move(noise), {}};
  tracks.position.resize(tracks.sample.size());
  std::iota(tracks.position.begin(), tracks.position.end(), 0);
  return tracks;
}

TEST(Tracks, EveryModeHasItsTracks) {
  const std::vector<std::vector<Span>> samples = {
      {{Mode::causal, 2}, {Mode::full, 1}, {Mode::noise, 1}, {Mode::branch, 1}, {Mode::group, 1}, {Mode::group, 1}},
      {{Mode::noise, 1, 5}, {Mode::causal, 1}, {Mode::noise, 1, 5}, {Mode::group, 1, 5}, {Mode::group, 1}}};
  const Tracks tracks = to_tracks(layout_from_samples(samples));
  EXPECT_THAT(tracks.sample, ElementsAre(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1));
  EXPECT_THAT(tracks.segment, ElementsAre(-1, -1, 0, 1, -1, 2, 2, 3, -1, 3, 4, 5));
  EXPECT_THAT(tracks.noise, ElementsAre(-1, -1, -1, 0, 1, -1, -1, 2, -1, 2, -1, -1));
  EXPECT_THAT(tracks.position, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

TEST(Tracks, EmptySpansLeaveNoTrace) {
  const std::vector<std::vector<Span>> with = {
      {{Mode::full, 0}, {Mode::causal, 2}, {Mode::branch, 0}, {Mode::full, 3}}};
  const std::vector<std::vector<Span>> without = {{{Mode::causal, 2}, {Mode::full, 3}}};
  expect_equal(to_tracks(layout_from_samples(with)), to_tracks(layout_from_samples(without)));
  EXPECT_EQ(normalize(layout_from_samples(with)), layout_from_samples(without));
  EXPECT_TRUE(to_tracks(Layout{}).sample.empty());
  EXPECT_EQ(from({}), Layout{});
}

TEST(Tracks, NormalizeJoinsNeighboursAndRenumbersSets) {
  const std::vector<std::vector<Span>> given = {
      {{Mode::causal, 2}, {Mode::causal, 3}, {Mode::noise, 4, 9}, {Mode::noise, 1, 9}},
      {},
      {{Mode::group, 5, 7}, {Mode::causal, 1}, {Mode::group, 6}, {Mode::causal, 1}, {Mode::group, 5, 7}},
      {{Mode::noise, 2, 8}, {Mode::full, 1}, {Mode::noise, 3, 8}, {Mode::noise, 4, 2}}};
  const std::vector<std::vector<Span>> normal = {
      {{Mode::causal, 5}, {Mode::noise, 5}},
      {{Mode::group, 5}, {Mode::causal, 1}, {Mode::full, 6}, {Mode::causal, 1}, {Mode::group, 5}},
      {{Mode::noise, 2, 0}, {Mode::full, 1}, {Mode::noise, 3, 0}, {Mode::noise, 4}}};
  EXPECT_EQ(normalize(layout_from_samples(given)), layout_from_samples(normal));
}

TEST(Tracks, TwoInterleavedGroupsKeepIds) {
  const std::vector<std::vector<Span>> samples = {
      {{Mode::group, 1, 4}, {Mode::group, 2, 6}, {Mode::group, 3, 4}, {Mode::group, 4, 6}}};
  const std::vector<std::vector<Span>> normal = {
      {{Mode::group, 1, 0}, {Mode::group, 2, 1}, {Mode::group, 3, 0}, {Mode::group, 4, 1}}};
  EXPECT_EQ(normalize(layout_from_samples(samples)), layout_from_samples(normal));
  expect_round_trip(layout_from_samples(samples));
}

TEST(Tracks, RoundTripOfGoldenAndGeneratedLayouts) {
  for (const GoldenLayout& golden : golden_layouts()) expect_round_trip(golden.layout);
  for (const GeneratorInfo& info : generators()) expect_round_trip(generate(info.name, 50000, 3));
}

TEST(Tracks, SampleIdsNeedNotBeDense) {
  Tracks tracks = tracks_of({-1, -1, -1}, {-1, -1, -1});
  tracks.sample = {7, 7, 3};
  EXPECT_EQ(from(tracks), layout_from_cu_seqlens(std::vector<std::int64_t>{0, 2, 3}));
}

TEST(Tracks, ContradictionsAreRefusedByName) {
  const auto refuses = [](const Tracks& tracks, const std::string& words) {
    EXPECT_THAT([&] { (void)from(tracks); }, ThrowsMessage<InvalidArgument>(HasSubstr(words)));
  };
  Tracks tracks = tracks_of({-1, -1, -1}, {-1, -1, -1});
  tracks.position = {0, 2, 1};
  refuses(tracks, "position 2 at token 1");
  tracks = tracks_of({-1, -1, -1}, {-1, -1, -1});
  tracks.sample = {0, 1, 0};
  refuses(tracks, "sample 0 returns at token 2");
  tracks.sample = {0, 0, -1};
  refuses(tracks, "sample -1 at token 2 is negative");
  tracks.sample = {0, 0};
  refuses(tracks, "tracks differ in length: sample 2, segment 3");
  refuses(tracks_of({-1, -5}, {-1, -1}), "segment -5 at token 1 is below -1");
  refuses(tracks_of({-1, -1}, {-1, -2}), "noise -2 at token 1 is below -1");
  tracks = tracks_of({4, 4}, {-1, -1});
  tracks.sample = {0, 1};
  refuses(tracks, "segment 4 at token 0 is in sample 0, but at token 1 in sample 1");
  tracks = tracks_of({-1, -1}, {4, 4});
  tracks.sample = {0, 1};
  refuses(tracks, "noise 4 at token 0 is in sample 0, but at token 1 in sample 1");
}

TEST(Tracks, WhatSpansCannotSayIsRefusedByName) {
  const auto refuses = [](const Tracks& tracks, const std::string& words) {
    EXPECT_THAT([&] { (void)from(tracks); }, ThrowsMessage<InvalidArgument>(HasSubstr(words)));
  };
  refuses(tracks_of({3, 3}, {-1, 0}), "segment 3 has noise -1 at token 0, but 0 at token 1");
  refuses(tracks_of({3, 4}, {0, 0}), "noise 0 has segment 3 at token 0, but 4 at token 1");
  refuses(tracks_of({-1, 4}, {0, 0}), "noise 0 has segment -1 at token 0, but 4 at token 1");
  refuses(tracks_of({-1, -1, -1}, {2, -1, 2}), "noise 2 has no segment (a branch) and returns at token 2");
}

}  // namespace
}  // namespace marble

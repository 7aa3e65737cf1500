// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/golden.hpp"

#include "layout/generators/bagel.hpp"
#include "layout/generators/gemma3.hpp"
#include "layout/generators/molmo2.hpp"
#include "layout/generators/qwen.hpp"

#include <gtest/gtest.h>

namespace marble {
namespace {

constexpr ImageSize kVga = {480, 640};
constexpr ImageSize kHd = {720, 1280};

TEST(Golden, LayoutsHaveTheirTokenCounts) {
  for (const GoldenLayout& golden : golden_layouts())
    EXPECT_EQ(golden.layout.num_tokens(), golden.tokens) << golden.name;
}

TEST(Golden, QwenLengthsAddUp) {
  EXPECT_EQ(210 + 2 + qwen_image_tokens(kVga) + 325 + 2 + qwen_image_tokens(kHd) + 180 + 1, 1900);
  EXPECT_EQ(3 + qwen_video_tokens(300, kHd, {}) + 20 + 5 + 150 + 2, 22040);
}

TEST(Golden, Molmo2SamplesAreRebuilt) {
  EXPECT_EQ(molmo2_video(molmo2_frame_times(100, 384), 0, {26, 40}), golden::molmo2_video());
  const std::int64_t tokens = molmo2_image_tokens(molmo2_tiling(kVga, 8));
  EXPECT_EQ(molmo2_images({tokens, tokens}, {60}), golden::molmo2_images(Mode::causal));
}

TEST(Golden, Gemma3DocumentIsRebuilt) {
  const Document document{.texts = {200, 310}, .images = {kVga}};
  EXPECT_EQ(gemma3_document(document, true), golden::gemma3_document());
  const Sample without_crops = {{Mode::causal, 203}, {Mode::full, 256}, {Mode::causal, 312}};
  EXPECT_EQ(gemma3_document(document, false), without_crops);
}

TEST(Golden, BagelInterleavedSamplesAreRebuilt) {
  Random random(0, 0);
  const BagelOptions options{.stage = bagel_stage("ct"), .drop = false};
  BagelSample edit(random, options);
  edit.add_clean(kHd);
  edit.add_condition(24);
  edit.add_generated(kHd, 1, false);
  edit.add_condition(18);
  edit.add_generated(kHd, 1, true);
  EXPECT_EQ(edit.spans, golden::bagel_edit());

  BagelSample image_to_text(random, options);
  image_to_text.add_seen(kVga, 1);
  EXPECT_EQ(image_to_text.spans, (Sample{{Mode::full, 1566}}));

  BagelSample text_to_image(random, options);
  text_to_image.add_noise({1024, 1024});
  EXPECT_EQ(text_to_image.spans, (Sample{{Mode::noise, 4098}}));
}

TEST(Golden, BagelLongVideosAreRebuilt) {
  const BagelLongVideo video;
  for (const auto& [tokens, frames] : {std::pair{3090, 3}, {131072, 111}, {1048576, 887}}) {
    EXPECT_EQ(bagel_long_video_splits(video, tokens), frames);
    EXPECT_EQ(bagel_long_video(video, frames), golden::bagel_long_video(frames));
  }
}

}  // namespace
}  // namespace marble

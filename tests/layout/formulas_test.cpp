// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/bagel.hpp"
#include "layout/generators/gemma3.hpp"
#include "layout/generators/molmo2.hpp"
#include "layout/generators/qwen.hpp"

#include "marble/error.hpp"

#include <gtest/gtest.h>

namespace marble {
namespace {

constexpr ImageSize kVga = {480, 640};
constexpr ImageSize kHd = {720, 1280};

TEST(QwenFormulas, ImageTokens) {
  EXPECT_EQ(qwen_image_tokens(kVga), 300);
  EXPECT_EQ(qwen_image_tokens(kHd), 880);
  EXPECT_EQ(qwen_image_tokens({1080, 1920}), 2040);
  EXPECT_EQ(qwen_image_tokens({150, 150}), 64);
  EXPECT_LE(qwen_image_tokens({6000, 6000}), 16384);
}

TEST(QwenFormulas, VideoTokensUnderAFrameBudget) {
  const QwenVideoRule released;
  const QwenVideoRule report{.budget = 229376, .max_frames = 2048};
  struct Case {
    std::int64_t tenths, released, report;
  };
  for (const Case& c :
       {Case{300, 21860, 21860}, Case{600, 43730, 43730}, Case{1800, 108610, 131290}, Case{6000, 109753, 224290}}) {
    EXPECT_EQ(qwen_video_tokens(c.tenths, kHd, released), c.released) << c.tenths;
    EXPECT_EQ(qwen_video_tokens(c.tenths, kHd, report), c.report) << c.tenths;
  }
}

TEST(QwenFormulas, WholeVideoRuleCapsEveryLength) {
  const QwenVideoRule rule{.kind = QwenVideoRule::Kind::whole_video, .budget = 12288};
  for (const std::int64_t seconds : {5, 30, 60, 600, 3600}) {
    const std::int64_t grids = std::min<std::int64_t>(seconds, 384);
    EXPECT_LE(qwen_video_tokens(10 * seconds, kHd, rule), 12288 + grids * (2 + 9)) << seconds;
  }
  EXPECT_GT(qwen_video_tokens(36000, kHd, rule), 9000);
}

TEST(Molmo2Formulas, TilingTotals) {
  struct Case {
    Molmo2Tiling tiling;
    std::int64_t tokens;
  };
  for (const Case& c : {Case{{1, 1}, 410}, Case{{1, 2}, 536}, Case{{2, 2}, 752}, Case{{2, 3}, 982}, Case{{2, 4}, 1189},
                        Case{{4, 2}, 1208}, Case{{1, 8}, 1334}, Case{{8, 1}, 1400}, Case{{4, 6}, 2804}})
    EXPECT_EQ(molmo2_image_tokens(c.tiling), c.tokens) << c.tiling.rows << " x " << c.tiling.columns;
}

TEST(Molmo2Formulas, TilingFollowsTheImage) {
  const auto tiles = [](ImageSize size, std::int64_t crops) {
    const Molmo2Tiling tiling = molmo2_tiling(size, crops);
    return std::pair(tiling.rows, tiling.columns);
  };
  EXPECT_EQ(tiles(kVga, 8), std::pair(std::int64_t{2}, std::int64_t{2}));
  EXPECT_EQ(tiles({300, 300}, 8), std::pair(std::int64_t{1}, std::int64_t{1}));    // smallest that enlarges
  EXPECT_EQ(tiles({3000, 3000}, 8), std::pair(std::int64_t{2}, std::int64_t{2}));  // the earlier of equals
  EXPECT_EQ(tiles({500, 6000}, 8), std::pair(std::int64_t{1}, std::int64_t{8}));
}

TEST(Molmo2Formulas, VideoTokensAndFrames) {
  const auto tokens = [](std::int64_t tenths) {
    return num_tokens(molmo2_video(molmo2_frame_times(tenths, 384), 0, {0}));
  };
  EXPECT_EQ(molmo2_frame_times(600, 384).size(), 121U);
  EXPECT_EQ(tokens(600), 10749);
  EXPECT_EQ(molmo2_frame_times(1800, 384).size(), 361U);
  EXPECT_EQ(tokens(1800), 32270);
  EXPECT_EQ(molmo2_frame_times(1914, 384).size(), 384U);
  EXPECT_EQ(molmo2_frame_times(36000, 384).size(), 384U);
  EXPECT_EQ(molmo2_frame_times(36000, 384).back(), 3600000);
  EXPECT_EQ(molmo2_frame_times(103, 384).back(), 10300);
}

TEST(Molmo2Formulas, OneAnnotationIsTextAndSeveralAreBranches) {
  EXPECT_EQ(molmo2_images({410}, {30}), (Sample{{Mode::causal, 1}, {Mode::group, 410}, {Mode::causal, 30}}));
  EXPECT_EQ(molmo2_video({0}, 12, {30, 40}),
            (Sample{{Mode::causal, 5}, {Mode::group, 83}, {Mode::causal, 12}, {Mode::branch, 30}, {Mode::branch, 40}}));
}

TEST(Gemma3Formulas, CropsNeedAnElongatedImage) {
  EXPECT_EQ(gemma3_num_crops({1000, 1199}), 0);
  EXPECT_EQ(gemma3_num_crops({1000, 1200}), 2);
  EXPECT_EQ(gemma3_num_crops({1200, 1000}), 2);
  EXPECT_EQ(gemma3_num_crops({500, 1250}), 3);
  EXPECT_EQ(gemma3_num_crops({500, 4000}), 4);
  EXPECT_EQ(gemma3_num_crops({250, 500}), 0);  // a crop would be below 256 pixels
  EXPECT_EQ(gemma3_num_crops({300, 510}), 0);
}

TEST(BagelFormulas, ResizedImages) {
  const BagelStage ct = bagel_stage("ct");
  const BagelStage pt = bagel_stage("pt");
  const BagelResize editing{.min_short = 224, .max_long = 518, .stride = 14};
  EXPECT_EQ(bagel_resize(kHd, ct.vae), (ImageSize{576, 1024}));
  EXPECT_EQ(bagel_image_tokens(kHd, ct.vae), 2304);
  EXPECT_EQ(bagel_image_tokens(kHd, pt.vae), 576);
  EXPECT_EQ(bagel_resize(kHd, ct.vit), (ImageSize{546, 980}));
  EXPECT_EQ(bagel_image_tokens(kHd, ct.vit), 2730);
  EXPECT_EQ(bagel_image_tokens(kHd, editing), 777);
  EXPECT_EQ(bagel_image_tokens({1024, 1024}, ct.vae), 4096);
  EXPECT_EQ(bagel_image_tokens({1024, 1024}, ct.vit), 4900);
  EXPECT_EQ(bagel_image_tokens(kVga, ct.vae), 1376);
  EXPECT_EQ(bagel_image_tokens(kVga, ct.vit), 1564);
}

TEST(BagelFormulas, ManyImagesShareThePixelCap) {
  const BagelStage ct = bagel_stage("ct");
  EXPECT_EQ(bagel_image_tokens({980, 980}, ct.vit, 2), 4900);
  EXPECT_LT(bagel_image_tokens({980, 980}, ct.vit, 3), 2600);
}

TEST(BagelFormulas, LongVideoFrames) {
  const auto splits = [](std::int64_t frame, std::int64_t tokens) {
    return bagel_long_video_splits({.frame_tokens = frame}, tokens);
  };
  EXPECT_EQ(splits(578, 131072), 111);
  EXPECT_EQ(splits(1026, 131072), 63);
  EXPECT_EQ(splits(2306, 131072), 28);
  EXPECT_EQ(splits(578, 1048576), 887);
  EXPECT_EQ(splits(1026, 1048576), 505);
  EXPECT_EQ(splits(2306, 1048576), 226);
}

TEST(BagelFormulas, LongVideoSplitsFillTheirTokens) {
  for (const bool forcing : {false, true}) {
    for (const std::int64_t vit : {0, 1298}) {
      const BagelLongVideo video{.vit_tokens = vit, .frames_per_split = 4, .forcing = forcing};
      const std::int64_t splits = bagel_long_video_splits(video, 100000);
      EXPECT_LE(num_tokens(bagel_long_video(video, splits)), 100000);
      EXPECT_GT(num_tokens(bagel_long_video(video, splits + 1)), 100000);
    }
  }
}

TEST(BagelFormulas, ForcingShowsGeneratedSplitsToLaterOnes) {
  const BagelLongVideo video{.frames_per_split = 2, .forcing = true};
  EXPECT_EQ(
      bagel_long_video(video, 2),
      (Sample{{Mode::causal, 122}, {Mode::causal, 26}, {Mode::full, 1156}, {Mode::causal, 26}, {Mode::noise, 1156}}));
}

}  // namespace
}  // namespace marble

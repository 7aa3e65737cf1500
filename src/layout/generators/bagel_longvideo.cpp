// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/bagel.hpp"

#include <algorithm>

namespace marble {
namespace {

constexpr std::int64_t kPrompt = 120 + kBagelEnds;
constexpr std::int64_t kCaption = 24 + kBagelEnds;

std::int64_t clean_tokens(const BagelLongVideo& video) {
  const bool forced = video.forcing && video.frames_per_split > 1;
  return forced ? 0 : video.frames_per_split * (video.frame_tokens + video.vit_tokens);
}

}  // namespace

Sample bagel_long_video(const BagelLongVideo& video, std::int64_t num_splits) {
  const bool forced = video.forcing && video.frames_per_split > 1;
  const std::int64_t split_tokens = video.frames_per_split * video.frame_tokens;
  Sample sample = {{Mode::causal, kPrompt}};
  for (std::int64_t split = 0; split < num_splits; ++split) {
    const bool last = split + 1 == num_splits;
    sample.push_back({Mode::causal, kCaption});
    sample.push_back({forced && !last ? Mode::full : Mode::noise, split_tokens});
    if (last || forced) continue;
    sample.push_back({Mode::full, split_tokens});
    if (video.vit_tokens > 0) sample.push_back({Mode::full, video.frames_per_split * video.vit_tokens});
  }
  return sample;
}

std::int64_t bagel_long_video_splits(const BagelLongVideo& video, std::int64_t tokens) {
  const std::int64_t clean = clean_tokens(video);  // which the last split lacks
  return (tokens - kPrompt + clean) / (kCaption + video.frames_per_split * video.frame_tokens + clean);
}

std::vector<GeneratorParameter> bagel_long_video_parameters() {
  return {{"length", "tokens of a sample, or log-uniform: from 131072 to 1048576", "log-uniform"},
          {"frame", "tokens of a frame: 578 (512x288), 1026 (512x512) or 2306 (1024x576)", "578"},
          {"vit", "on or off: clean frames have a ViT span too", "off"}};
}

Recipe bagel_long_video_recipe(const ParameterReader& parameters) {
  const std::string_view frame = parameters.one_of("frame", {"578", "1026", "2306"});
  const ImageSize size = frame == "578"    ? ImageSize{288, 512}
                         : frame == "1026" ? ImageSize{512, 512}
                                           : ImageSize{576, 1024};
  const BagelStage stage = bagel_stage("ct");
  BagelLongVideo video{.frame_tokens = (size.height / stage.vae.stride) * (size.width / stage.vae.stride) + kBagelEnds};
  read_bagel_video_parameters(parameters, video);
  if (parameters.on_off("vit")) video.vit_tokens = bagel_image_tokens(size, stage.vit) + kBagelEnds;

  const Sample smallest = bagel_long_video(video, 2);
  const bool fixed = parameters.text("length") != "log-uniform";
  const std::int64_t length = fixed ? parameters.integer("length", num_tokens(smallest), 1 << 28) : 0;
  return {.draw =
              [video, length](Random random, SampleLimits& limits) {
                constexpr std::int64_t kShortest = 131072;
                const std::int64_t tokens = length > 0 ? length : random.log_uniform(kShortest, 3000);
                limits.items = std::min(limits.items, bagel_long_video_splits(video, tokens));
                return bagel_long_video(video, limits.items);
              },
          .smallest = {smallest}};
}

}  // namespace marble

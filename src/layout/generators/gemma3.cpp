// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/gemma3.hpp"

#include "layout/generators/models.hpp"
#include "layout/generators/videos.hpp"

#include <algorithm>
#include <cmath>

namespace marble {
namespace {

// Text tokens around images, counted with the tokenizer.
constexpr std::int64_t kBegin = 1;
constexpr std::int64_t kBeforeImage = 2;
constexpr std::int64_t kBeforeCroppedImage = 8;
constexpr std::int64_t kBeforeFirstCrop = 15;
constexpr std::int64_t kBetweenCrops = 5;
constexpr std::int64_t kAfterImage = 2;
constexpr std::int64_t kBeforeQuestion = 3;
constexpr std::int64_t kBeforeAnswer = 5;

constexpr Span kImage = {Mode::full, kGemma3ImageTokens};

Recipe document_recipe(const ParameterReader& parameters) {
  const bool crops = parameters.on_off("crops");
  return {.draw =
              [crops](Random random, SampleLimits& limits) {
                const Document document = draw_document(random, limits.items);
                limits.items = static_cast<std::int64_t>(document.images.size());
                return gemma3_document(document, crops && limits.detail_percent == 100);
              },
          .smallest = {{{Mode::causal, kBegin + kBeforeImage}, kImage, {Mode::causal, kAfterImage}}}};
}

Recipe frames_recipe(const ParameterReader& parameters) {
  const std::int64_t max_frames = parameters.integer("frames", 1, 1 << 20);
  return {.draw =
              [max_frames](Random random, SampleLimits& limits) {
                const VideoTask task = draw_video_task(random);
                const std::int64_t duration = draw_duration(random, task);
                const Turn turn = draw_turns(random, task, duration / 5).front();
                limits.items = std::min({limits.items, max_frames, (duration + 9) / 10});
                return gemma3_frames(limits.items, turn.question, turn.answer);
              },
          .smallest = {gemma3_frames(1, 1, 1)}};
}

GeneratorInfo gemma3_info(std::string name, std::string description, std::vector<GeneratorParameter> parameters) {
  return {.name = std::move(name),
          .model = "Gemma 3 27B",
          .description = std::move(description),
          .heads = 32,
          .kv_heads = 16,
          .head_dim = 128,
          .softmax_scale = 1.0 / std::sqrt(168.0),
          .layers = {{.window = 0, .count = 10}, {.window = 1024, .count = 52}},
          .modes = {Mode::causal, Mode::full},
          .parameters = std::move(parameters)};
}

}  // namespace

std::int64_t gemma3_num_crops(ImageSize size) {
  constexpr std::int64_t kMinCropSide = 256;
  const auto [short_side, long_side] = std::minmax(size.height, size.width);
  if (5 * long_side < 6 * short_side) return 0;  // aspect ratio below 1.2
  const std::int64_t nearest = (2 * long_side + short_side) / (2 * short_side);
  const std::int64_t crops = std::clamp<std::int64_t>(std::min(long_side / kMinCropSide, nearest), 2, 4);
  const std::int64_t crop_side = (long_side + crops - 1) / crops;
  return std::min(crop_side, short_side) < kMinCropSide ? 0 : crops;
}

Sample gemma3_document(const Document& document, bool crops) {
  Sample sample = {{Mode::causal, kBegin}};
  for (std::size_t i = 0; i < document.images.size(); ++i) {
    const std::int64_t num_crops = crops ? gemma3_num_crops(document.images[i]) : 0;
    append_text(sample, document.texts[i] + (num_crops > 0 ? kBeforeCroppedImage : kBeforeImage));
    sample.push_back(kImage);
    for (std::int64_t crop = 0; crop < num_crops; ++crop) {
      append_text(sample, crop == 0 ? kBeforeFirstCrop : kBetweenCrops);
      sample.push_back(kImage);
    }
    append_text(sample, kAfterImage);
  }
  append_text(sample, document.texts.back());
  return sample;
}

Sample gemma3_frames(std::int64_t num_frames, std::int64_t question, std::int64_t answer) {
  Sample sample = {{Mode::causal, kBegin + kBeforeQuestion}};
  for (std::int64_t frame = 0; frame < num_frames; ++frame) {
    append_text(sample, kBeforeImage);
    sample.push_back(kImage);
    append_text(sample, kAfterImage);
  }
  append_text(sample, question + kBeforeAnswer + answer);
  return sample;
}

std::vector<Generator> gemma3_generators() {
  return {
      {gemma3_info("gemma3-docs", "web documents, images with pan-and-scan crops",
                   {{"crops", "on or off: pan-and-scan crops of images with an aspect ratio of 1.2 or more", "on"}}),
       document_recipe},
      {gemma3_info("gemma3-frames", "videos as one image a second, with a question and an answer",
                   {{"frames", "the most frames taken from a video", "480"}}),
       frames_recipe}};
}

}  // namespace marble

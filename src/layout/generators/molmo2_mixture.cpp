// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Molmo2's mixture of tasks, by its published sampling rates.

#include "layout/generators/models.hpp"
#include "layout/generators/molmo2.hpp"
#include "layout/generators/videos.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace marble {
namespace {

enum class ImageTask : std::uint8_t { question, describe, point };

struct Molmo2Options {
  std::int64_t max_frames = 128;
  std::int64_t max_crops = 8;
};

constexpr std::int64_t kMaxTurns = 30;

std::vector<std::int64_t> annotation_lengths(const std::vector<Turn>& turns) {
  std::vector<std::int64_t> lengths;
  for (const Turn& turn : turns) lengths.push_back(kMolmo2TurnTokens + turn.question + turn.answer);
  return lengths;
}

std::vector<Turn> draw_image_turns(Random& random, ImageTask task) {
  if (task == ImageTask::describe) {
    if (random.chance(500)) return {{18, random.lognormal(200, 400, 20, 2000)}};
    return {draw_long_turn(random)};
  }
  std::vector<Turn> turns(static_cast<std::size_t>(random.geometric(4000, kMaxTurns)));
  for (Turn& turn : turns) turn = task == ImageTask::point ? draw_point_turn(random) : draw_short_turn(random);
  return turns;
}

/// Mostly one; sets hold two to five, 2.73 on average, 3.24 for pointing.
std::int64_t draw_num_images(Random& random, ImageTask task) {
  constexpr std::array<std::int64_t, 4> kSets = {55, 25, 12, 8};
  constexpr std::array<std::int64_t, 4> kPointingSets = {30, 35, 16, 19};
  const bool pointing = task == ImageTask::point;
  if (task == ImageTask::describe || !random.chance(pointing ? 220 : 250)) return 1;
  return 2 + static_cast<std::int64_t>(random.pick(pointing ? kPointingSets : kSets));
}

Sample draw_images(Random& random, SampleLimits& limits, const Molmo2Options& options, ImageTask task) {
  constexpr std::int64_t kPointingCrops = 3;  // times more, for three pointing images in ten
  const std::int64_t num_images = draw_num_images(random, task);
  std::vector<std::int64_t> images;
  for (std::int64_t i = 0; i < num_images; ++i) {
    const bool fine = task == ImageTask::point && random.chance(300);
    const std::int64_t crops = options.max_crops * (fine ? kPointingCrops : 1) * limits.detail_percent / 100;
    images.push_back(molmo2_image_tokens(molmo2_tiling(draw_web_image(random), std::max<std::int64_t>(1, crops))));
  }
  const std::vector<Turn> turns = draw_image_turns(random, task);
  limits.items = std::min(limits.items, num_images);
  images.resize(static_cast<std::size_t>(limits.items));
  return molmo2_images(images, annotation_lengths(turns));
}

Sample draw_video(Random& random, SampleLimits& limits, const Molmo2Options& options) {
  constexpr std::int64_t kSubtitled = 333;     // of the videos with several questions
  constexpr std::int64_t kSubtitleTokens = 4;  // a second
  const VideoTask task = draw_video_task(random);
  const std::int64_t duration = draw_duration(random, task);
  std::vector<std::int64_t> times = molmo2_frame_times(duration, options.max_frames);
  const bool subtitled = task == VideoTask::caption_qa && random.chance(kSubtitled);
  const auto turns = draw_turns(random, task, static_cast<std::int64_t>(times.size()));
  limits.items = std::min(limits.items, static_cast<std::int64_t>(times.size()));
  times.resize(static_cast<std::size_t>(limits.items));
  return molmo2_video(times, subtitled ? kSubtitleTokens * duration / 10 : 0, annotation_lengths(turns));
}

Sample draw_text(Random& random, SampleLimits& limits) {
  constexpr std::int64_t kBegin = 1;
  limits.items = 1;
  return {{Mode::causal, kBegin + kMolmo2TurnTokens + random.lognormal(500, 800, 20, 4096)}};
}

// Sampling rates, thousandths: image questions, image descriptions, image pointing, video, text.
constexpr std::array<std::int64_t, 5> kMixtureRates = {227, 87, 91, 503, 91};

using Draw = Sample (*)(Random&, SampleLimits&, const Molmo2Options&);

Sample draw_image_task(Random& random, SampleLimits& limits, const Molmo2Options& options) {
  const auto task = static_cast<ImageTask>(random.pick(std::span(kMixtureRates).first(3)));
  return draw_images(random, limits, options, task);
}

Sample draw_mixture(Random& random, SampleLimits& limits, const Molmo2Options& options) {
  const std::size_t kind = random.pick(kMixtureRates);
  if (kind < 3) return draw_images(random, limits, options, static_cast<ImageTask>(kind));
  return kind == 3 ? draw_video(random, limits, options) : draw_text(random, limits);
}

const std::vector<std::int64_t> kShortestAnnotations(2, kMolmo2TurnTokens + 2);

Recipe molmo2_recipe(Draw draw, const Molmo2Options& options, Sample smallest) {
  return {.draw = [draw, options](Random random, SampleLimits& limits) { return draw(random, limits, options); },
          .smallest = {std::move(smallest)}};
}

Recipe video_recipe(const ParameterReader& parameters) {
  const Molmo2Options options{.max_frames = parameters.integer("frames", 2, 1 << 20)};
  return molmo2_recipe(draw_video, options, molmo2_video({0}, 0, kShortestAnnotations));
}

Recipe images_recipe(const ParameterReader& parameters) {
  const Molmo2Options options{.max_crops = parameters.integer("crops", 1, 64)};
  return molmo2_recipe(draw_image_task, options, molmo2_images({molmo2_image_tokens({1, 1})}, kShortestAnnotations));
}

Recipe mixture_recipe(const ParameterReader& parameters) {
  const Molmo2Options options{.max_frames = parameters.integer("frames", 2, 1 << 20),
                              .max_crops = parameters.integer("crops", 1, 64)};
  return molmo2_recipe(draw_mixture, options, molmo2_video({0}, 0, kShortestAnnotations));
}

GeneratorInfo molmo2_info(std::string name, std::string description, std::vector<GeneratorParameter> parameters) {
  return {.name = std::move(name),
          .model = "Molmo2-8B",
          .description = std::move(description),
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .softmax_scale = 1.0 / std::sqrt(128.0),
          .layers = {{.window = 0, .count = 36}},
          .modes = {Mode::causal, Mode::group, Mode::branch},
          .parameters = std::move(parameters)};
}

}  // namespace

std::vector<Generator> molmo2_generators() {
  const GeneratorParameter crops = {"crops", "the most crops of an image; pointing images may take three times as many",
                                    "8"};
  const auto frames = [](std::string default_value) {
    return GeneratorParameter{"frames", "the most frames of a video; 384 in the long stage", std::move(default_value)};
  };
  return {{molmo2_info("molmo2-video", "videos with captions, questions, points and tracks", {frames("384")}),
           video_recipe},
          {molmo2_info("molmo2-images", "images and sets of images with several annotations", {crops}), images_recipe},
          {molmo2_info("molmo2-sft", "the whole fine-tuning mixture", {frames("128"), crops}), mixture_recipe}};
}

}  // namespace marble

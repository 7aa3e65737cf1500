// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/bagel.hpp"

#include "layout/generators/models.hpp"

#include <algorithm>
#include <cmath>

namespace marble {
namespace {

/// Half to even, as Python rounds; std::nearbyint is exact, so every platform agrees.
std::int64_t rounded(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value));
}

std::int64_t scaled_side(std::int64_t side, double scale, std::int64_t stride) {
  const std::int64_t pixels = rounded(static_cast<double>(side) * scale);
  return std::max(stride, rounded(static_cast<double>(pixels) / static_cast<double>(stride)) * stride);
}

ImageSize scaled_size(ImageSize size, double scale, std::int64_t stride) {
  return {scaled_side(size.height, scale, stride), scaled_side(size.width, scale, stride)};
}

GeneratorInfo bagel_info(std::string name, std::string description, std::vector<GeneratorParameter> parameters) {
  return {.name = std::move(name),
          .model = "BAGEL-7B-MoT",
          .description = std::move(description),
          .heads = 28,
          .kv_heads = 4,
          .head_dim = 128,
          .softmax_scale = 1.0 / std::sqrt(128.0),
          .layers = {{.window = 0, .count = 28}},
          .modes = {Mode::causal, Mode::full, Mode::noise},
          .parameters = std::move(parameters)};
}

}  // namespace

ImageSize bagel_resize(ImageSize size, const BagelResize& rule, std::int64_t num_images) {
  const auto [short_side, long_side] = std::minmax(size.height, size.width);
  double scale = std::min(static_cast<double>(rule.max_long) / static_cast<double>(long_side), 1.0);
  scale = std::max(scale, static_cast<double>(rule.min_short) / static_cast<double>(short_side));
  ImageSize resized = scaled_size(size, scale, rule.stride);
  const double max_pixels = static_cast<double>(rule.max_pixels) / static_cast<double>(num_images);
  const auto pixels = static_cast<double>(resized.height * resized.width);
  // The model's own code scales both sides by the ratio of the areas, not by its root.
  if (pixels > max_pixels) resized = scaled_size(resized, max_pixels / pixels, rule.stride);
  const std::int64_t longest = std::max(resized.height, resized.width);
  if (longest > rule.max_long)
    resized = scaled_size(resized, static_cast<double>(rule.max_long) / static_cast<double>(longest), rule.stride);
  return resized;
}

std::int64_t bagel_image_tokens(ImageSize size, const BagelResize& rule, std::int64_t num_images) {
  const ImageSize resized = bagel_resize(size, rule, num_images);
  return (resized.height / rule.stride) * (resized.width / rule.stride);
}

BagelStage bagel_stage(std::string_view preset) {
  constexpr std::int64_t kUnderstandingPixels = 2007040;
  if (preset == "pt") {
    return {.vae = {.min_short = 256, .max_long = 512, .stride = 16},
            .vit = {.min_short = 224, .max_long = 980, .stride = 14, .max_pixels = kUnderstandingPixels},
            .max_sample = 16384,
            .rates = {50, 100, 600, 100, 100, 50}};
  }
  BagelStage stage{.vae = {.min_short = 512, .max_long = 1024, .stride = 16},
                   .vit = {.min_short = 378, .max_long = 980, .stride = 14, .max_pixels = kUnderstandingPixels},
                   .max_sample = 40960,
                   .rates = {50, 100, 400, 150, 150, 150}};
  if (preset == "sft") stage.rates = {50, 50, 300, 200, 200, 200};
  return stage;
}

void BagelSample::add_condition(std::int64_t length) {
  if (!dropped(100)) add_text(length);
}

void BagelSample::add_seen(ImageSize size, std::int64_t num_images) {
  spans.push_back({Mode::full, bagel_image_tokens(size, options_.stage.vit, num_images) + kBagelEnds});
}

void BagelSample::add_noise(ImageSize size, std::int64_t frames) {
  spans.push_back({Mode::noise, frames * (bagel_image_tokens(size, options_.stage.vae) + kBagelEnds)});
}

void BagelSample::add_clean(ImageSize size, std::int64_t frames) {
  if (!dropped(100))
    spans.push_back({Mode::full, frames * (bagel_image_tokens(size, options_.stage.vae) + kBagelEnds)});
  if (!dropped(500))
    spans.push_back({Mode::full, frames * (bagel_image_tokens(size, options_.stage.vit) + kBagelEnds)});
}

void BagelSample::add_generated(ImageSize size, std::int64_t frames, bool last) {
  add_noise(size, frames);
  if (last) return;
  if (options_.forcing && frames > 1) {
    spans.back().mode = Mode::full;
  } else {
    add_clean(size, frames);
  }
}

std::vector<GeneratorParameter> bagel_image_parameters() {
  return {{"preset", "training stage: pt, ct or sft; sets resolutions and sampling rates", "ct"},
          {"max_sample", "longer samples are drawn again; auto: 16384 for pt, 40960 for ct and sft", "auto"},
          {"drop", "on or off: leave out text .1, clean images .1 and their ViT .5 of the time", "on"}};
}

BagelOptions bagel_image_options(const ParameterReader& parameters) {
  BagelOptions options{.stage = bagel_stage(parameters.one_of("preset", {"pt", "ct", "sft"})),
                       .drop = parameters.on_off("drop")};
  if (parameters.text("max_sample") != "auto")
    options.stage.max_sample = parameters.integer("max_sample", 4096, 1 << 30);
  return options;
}

std::vector<GeneratorParameter> bagel_video_parameters() {
  return {{"frames_per_split", "consecutive video frames generated together", "1"},
          {"forcing", "on or off: splits of several frames are seen as generated, without a clean copy", "off"}};
}

std::vector<Generator> bagel_generators() {
  const auto with_video = [](std::vector<GeneratorParameter> parameters) {
    for (GeneratorParameter& parameter : bagel_video_parameters()) parameters.push_back(std::move(parameter));
    return parameters;
  };
  return {{bagel_info("bagel-mix", "text, image to text, text to image and interleaved samples of one training stage",
                      with_video(bagel_image_parameters())),
           bagel_mix_recipe},
          {bagel_info("bagel-longvideo", "generated videos of 128k to 1M tokens, noise and clean frames in turn",
                      with_video(bagel_long_video_parameters())),
           bagel_long_video_recipe},
          {bagel_info("bagel-edit", "image edits of one or two steps", bagel_image_parameters()), bagel_edit_recipe}};
}

}  // namespace marble

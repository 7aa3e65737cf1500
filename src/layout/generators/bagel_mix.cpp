// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/bagel.hpp"

#include "marble/error.hpp"

#include <algorithm>

namespace marble {
namespace {

Sample draw_text(BagelSample sample, Random& random) {
  sample.add_text(random.lognormal(700, 840, 8, 16000));
  return sample.spans;
}

Sample draw_image_to_text(BagelSample sample, Random& random, SampleLimits& limits) {
  limits.items = 1;
  sample.add_seen(draw_image(random, 400, 450, limits.detail_percent), 1);
  sample.add_text(random.lognormal(20, 600, 3, 300));
  sample.add_text(random.lognormal(60, 900, 1, 2000));
  return sample.spans;
}

Sample draw_text_to_image(BagelSample sample, Random& random, SampleLimits& limits) {
  limits.items = 1;
  sample.add_text(random.lognormal(80, 700, 4, 600));
  sample.add_noise(draw_image(random, 900, 400, limits.detail_percent));
  return sample.spans;
}

Sample draw_understanding(BagelSample sample, Random& random, SampleLimits& limits) {
  constexpr std::array<std::int64_t, 7> kCounts = {2, 2, 3, 3, 4, 5, 6};
  const std::int64_t count = kCounts[static_cast<std::size_t>(random.below(kCounts.size()))];
  limits.items = std::min(limits.items, count);
  for (std::int64_t i = 0; i < limits.items; ++i) {
    sample.add_seen(draw_image(random, 720, 450, limits.detail_percent), count);
    sample.add_text(random.lognormal(120, 800, 4, 2000));
  }
  sample.add_text(random.lognormal(60, 800, 4, 1000));
  return sample.spans;
}

/// The first frame is given; the others are generated, a split at a time.
Sample draw_video(BagelSample sample, Random& random, SampleLimits& limits, std::int64_t frames_per_split) {
  std::int64_t generated = 1;  // 2 + Binomial(4, 1/2) frames in all
  for (int i = 0; i < 4; ++i) generated += random.below(2);
  limits.items = std::min(limits.items, generated);
  const ImageSize size = draw_video_size(random, limits.detail_percent);
  sample.add_clean(size);
  for (std::int64_t frame = 0; frame < limits.items; frame += frames_per_split) {
    const std::int64_t frames = std::min(frames_per_split, limits.items - frame);
    sample.add_condition(random.between(15, 30));
    sample.add_generated(size, frames, frame + frames == limits.items);
  }
  return sample.spans;
}

Sample draw_web(BagelSample sample, Random& random, SampleLimits& limits) {
  constexpr std::array<std::int64_t, 6> kCountWeights = {34, 24, 16, 12, 8, 6};  // of 3 to 8 images
  limits.items = std::min(limits.items, 3 + static_cast<std::int64_t>(random.pick(kCountWeights)));
  for (std::int64_t i = 0; i < limits.items; ++i) {
    const ImageSize size = draw_image(random, 720, 450, limits.detail_percent);
    sample.add_condition(random.lognormal(140, 700, 8, 300));
    sample.add_condition(random.between(30, 70));  // the caption
    sample.add_generated(size, 1, i + 1 == limits.items);
  }
  sample.add_text(random.lognormal(140, 700, 8, 300));
  return sample.spans;
}

Sample draw_kind(std::size_t kind, Random& random, SampleLimits& limits, const BagelOptions& options) {
  const BagelSample sample(random, options);
  if (kind == 1) return draw_image_to_text(sample, random, limits);
  if (kind == 2) return draw_text_to_image(sample, random, limits);
  if (kind == 3) return draw_understanding(sample, random, limits);
  if (kind == 4) return draw_video(sample, random, limits, options.frames_per_split);
  if (kind == 5) return draw_web(sample, random, limits);
  limits.items = 1;
  return draw_text(sample, random);
}

/// A step changes the image: instruction, then result. Half of the two-step edits merge both instructions into one.
Sample draw_edit(Random& random, SampleLimits& limits, const BagelOptions& options) {
  BagelSample sample(random, options);
  const std::int64_t steps = random.between(1, 2);
  const bool merged = steps == 2 && random.chance(500);
  const ImageSize size = draw_image(random, 900, 400, limits.detail_percent);
  limits.items = std::min(limits.items, merged ? 1 : steps);
  sample.add_clean(size);
  for (std::int64_t step = 0; step < limits.items; ++step) {
    std::int64_t instruction = random.lognormal(24, 500, 4, 200);
    if (merged) instruction += random.lognormal(24, 500, 4, 200);
    sample.add_condition(instruction);
    sample.add_generated(size, 1, step + 1 == limits.items);
  }
  return sample.spans;
}

/// Draws again while the sample is longer than the loader takes. Every attempt starts from the full limits.
template <typename Draw>
Sample draw_accepted(Random& random, SampleLimits& limits, std::int64_t max_sample, Draw&& draw) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    SampleLimits used = limits;
    Sample sample = draw(random, used);
    if (num_tokens(sample) > max_sample) continue;
    limits = used;
    return sample;
  }
  throw InvalidArgument(
      fmt::format("max_sample {} is too small: {} draws in a row were longer", max_sample, kAttempts));
}

constexpr ImageSize kSmallestImage = {1, 1};

Span smallest_noise(const BagelStage& stage) {
  return {Mode::noise, bagel_image_tokens(kSmallestImage, stage.vae) + kBagelEnds};
}

Span smallest_seen(const BagelStage& stage) {
  return {Mode::full, bagel_image_tokens(kSmallestImage, stage.vit) + kBagelEnds};
}

constexpr Span kShortestText = {Mode::causal, 1 + kBagelEnds};

}  // namespace

Recipe bagel_mix_recipe(const ParameterReader& parameters) {
  BagelOptions options = bagel_image_options(parameters);
  read_bagel_video_parameters(parameters, options);
  return {.draw =
              [options](Random random, SampleLimits& limits) {
                const std::size_t kind = random.pick(options.stage.rates);
                return draw_accepted(random, limits, options.stage.max_sample, [&](Random& again, SampleLimits& used) {
                  return draw_kind(kind, again, used, options);
                });
              },
          .smallest = {{kShortestText, smallest_noise(options.stage)},
                       {smallest_seen(options.stage), kShortestText, kShortestText}}};
}

Recipe bagel_edit_recipe(const ParameterReader& parameters) {
  const BagelOptions options = bagel_image_options(parameters);
  return {.draw =
              [options](Random random, SampleLimits& limits) {
                return draw_accepted(random, limits, options.stage.max_sample, [&](Random& again, SampleLimits& used) {
                  return draw_edit(again, used, options);
                });
              },
          .smallest = {{smallest_seen(options.stage), kShortestText, smallest_noise(options.stage)}}};
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// BAGEL-7B: images to understand are full spans (ViT), images to generate are noise spans (VAE), each followed by a
// clean copy (VAE and ViT, full) when something comes after it.

#include "layout/generators/images.hpp"
#include "layout/generators/parameters.hpp"
#include "layout/generators/recipe.hpp"

#include <array>

namespace marble {

/// An encoder's resize rule; sides become multiples of `stride`.
struct BagelResize {
  std::int64_t min_short = 0;
  std::int64_t max_long = 0;
  std::int64_t stride = 1;
  std::int64_t max_pixels = 1806336;
};
/// The pixel cap is shared by `num_images`.
[[nodiscard]] ImageSize bagel_resize(ImageSize size, const BagelResize& rule, std::int64_t num_images = 1);
/// Tokens of the resized image, without its start and end tokens.
[[nodiscard]] std::int64_t bagel_image_tokens(ImageSize size, const BagelResize& rule, std::int64_t num_images = 1);

/// A training stage: resolutions and sampling rates.
struct BagelStage {
  BagelResize vae;
  BagelResize vit;
  std::int64_t max_sample = 0;          // longer samples are drawn again, as the loader skips them
  std::array<std::int64_t, 6> rates{};  // thousandths: text, image to text, text to image, understanding, video, web
};
[[nodiscard]] BagelStage bagel_stage(std::string_view preset);

struct BagelOptions {
  BagelStage stage;
  bool drop = true;                   // conditions are dropped at the published rates
  std::int64_t frames_per_split = 1;  // consecutive video frames that share a span
  bool forcing = false;               // splits of several frames are seen as they are generated, without a clean copy
};

inline constexpr std::int64_t kBagelEnds = 2;  // the start and end tokens of every span

/// Builds interleaved samples. Text lengths are without the two end tokens.
class BagelSample {
 public:
  BagelSample(Random& random, const BagelOptions& options) : random_(random), options_(options) {}

  void add_text(std::int64_t length) { spans.push_back({Mode::causal, length + kBagelEnds}); }
  /// Text that condition drop may leave out.
  void add_condition(std::int64_t length);
  /// An image to understand: one of `num_images`.
  void add_seen(ImageSize size, std::int64_t num_images);
  /// `frames` images generated together.
  void add_noise(ImageSize size, std::int64_t frames = 1);
  /// What later spans see of them: VAE, then ViT, each subject to condition drop.
  void add_clean(ImageSize size, std::int64_t frames = 1);
  /// A generated split: the noise and, unless it is the last, the clean copy; or one full span under forcing.
  void add_generated(ImageSize size, std::int64_t frames, bool last);

  Sample spans;

 private:
  [[nodiscard]] bool dropped(std::int64_t thousandths) { return options_.drop && random_.chance(thousandths); }

  Random& random_;
  const BagelOptions& options_;
};

/// The parameters of samples of still images, and their values.
[[nodiscard]] std::vector<GeneratorParameter> bagel_image_parameters();
[[nodiscard]] BagelOptions bagel_image_options(const ParameterReader& parameters);
/// The parameters of samples that generate video, and their values, into `Options` that has fields of these names.
[[nodiscard]] std::vector<GeneratorParameter> bagel_video_parameters();
template <typename Options>
void read_bagel_video_parameters(const ParameterReader& parameters, Options& options) {
  options.frames_per_split = parameters.integer("frames_per_split", 1, 64);
  options.forcing = parameters.on_off("forcing");
}

[[nodiscard]] Recipe bagel_mix_recipe(const ParameterReader& parameters);
[[nodiscard]] Recipe bagel_edit_recipe(const ParameterReader& parameters);

/// Long videos: a prompt, then per split a caption, noise frames and their clean copy (the last split noise only).
struct BagelLongVideo {
  std::int64_t frame_tokens = 578;  // with both ends
  std::int64_t vit_tokens = 0;      // of a clean frame, with both ends; 0: none
  std::int64_t frames_per_split = 1;
  bool forcing = false;
};
[[nodiscard]] Sample bagel_long_video(const BagelLongVideo& video, std::int64_t num_splits);
/// The most splits that fit in `tokens`.
[[nodiscard]] std::int64_t bagel_long_video_splits(const BagelLongVideo& video, std::int64_t tokens);
[[nodiscard]] std::vector<GeneratorParameter> bagel_long_video_parameters();
[[nodiscard]] Recipe bagel_long_video_recipe(const ParameterReader& parameters);

}  // namespace marble

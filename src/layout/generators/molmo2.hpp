// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Molmo2-8B: all vision tokens of an example form one group; several annotations of it are branches that do not see
// each other.

#include "layout/generators/images.hpp"
#include "layout/generators/recipe.hpp"

namespace marble {

/// Rows and columns of high-resolution crops.
struct Molmo2Tiling {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};
/// The tiling of at most `max_crops` crops that fits the image best.
[[nodiscard]] Molmo2Tiling molmo2_tiling(ImageSize size, std::int64_t max_crops);
/// Group tokens of an image: the low-resolution view, then the crops.
[[nodiscard]] std::int64_t molmo2_image_tokens(Molmo2Tiling tiling);

/// The times of a video's frames, in milliseconds: two a second and the last, or `max_frames` evenly spaced.
[[nodiscard]] std::vector<std::int64_t> molmo2_frame_times(std::int64_t tenths_of_second, std::int64_t max_frames);

inline constexpr std::int64_t kMolmo2FrameTokens = 83;
inline constexpr std::int64_t kMolmo2TurnTokens = 3 + 5;  // the template around a question and its answer

/// Vision first, then `text` (subtitles), then the annotations: one is plain causal text, several are branches.
[[nodiscard]] Sample molmo2_video(const std::vector<std::int64_t>& times, std::int64_t text,
                                  const std::vector<std::int64_t>& annotations);
/// Several images carry labels ("Image 2").
[[nodiscard]] Sample molmo2_images(const std::vector<std::int64_t>& image_tokens,
                                   const std::vector<std::int64_t>& annotations);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/molmo2.hpp"

#include <algorithm>
#include <array>

namespace marble {
namespace {

constexpr std::int64_t kBegin = 1;
constexpr std::int64_t kImageLabel = 3;
constexpr std::int64_t kStartAndEnd = 2;

/// Pooled tokens along a side of `crops` overlapping crops.
constexpr std::int64_t pooled(std::int64_t crops) {
  return (19 * crops + 9) / 2;
}

/// The time before a frame, with one decimal: a token a digit before the point and four more, three before the first.
std::int64_t timestamp_tokens(std::int64_t milliseconds, bool first) {
  const std::int64_t tenths = (milliseconds + 50) / 100;
  std::int64_t digits = 1;
  for (std::int64_t rest = tenths / 100; rest > 0; rest /= 10) ++digits;
  return digits + (first ? 3 : 4);
}

void append_annotations(Sample& sample, const std::vector<std::int64_t>& annotations) {
  if (annotations.size() == 1) {
    append_text(sample, annotations.front());
    return;
  }
  for (const std::int64_t annotation : annotations) sample.push_back({Mode::branch, annotation});
}

}  // namespace

Molmo2Tiling molmo2_tiling(ImageSize size, std::int64_t max_crops) {
  // In single precision, as the model's preprocessor compares.
  constexpr std::int64_t kCrop = 266;    // pixels that each further crop adds
  constexpr std::int64_t kMargin = 112;  // pixels that only overlap
  const auto height = static_cast<float>(size.height - kMargin);
  const auto width = static_cast<float>(size.width - kMargin);
  Molmo2Tiling best;
  float best_scale = -1;
  for (std::int64_t crops = 1; crops <= max_crops; ++crops) {
    for (std::int64_t rows = 1; rows <= crops; ++rows) {
      if (crops % rows != 0) continue;
      const std::int64_t columns = crops / rows;
      const float scale =
          std::min(static_cast<float>(kCrop * rows) / height, static_cast<float>(kCrop * columns) / width);
      // Up to 1 the largest scale wins, beyond it the smallest; the earlier of equals.
      const bool better = best_scale < 1 ? scale > best_scale : scale >= 1 && scale < best_scale;
      if (!better) continue;
      best = {rows, columns};
      best_scale = scale;
    }
  }
  return best;
}

std::int64_t molmo2_image_tokens(Molmo2Tiling tiling) {
  constexpr std::int64_t kLowResolution = kStartAndEnd + 14 * 14;
  return kLowResolution + kStartAndEnd + pooled(tiling.rows) * (pooled(tiling.columns) + 1);
}

std::vector<std::int64_t> molmo2_frame_times(std::int64_t tenths_of_second, std::int64_t max_frames) {
  const std::int64_t duration = tenths_of_second * 100;
  const std::int64_t count = (tenths_of_second + 4) / 5 + 1;
  std::vector<std::int64_t> times;
  if (count <= max_frames) {
    for (std::int64_t i = 0; i + 1 < count; ++i) times.push_back(500 * i);
    times.push_back(duration);
  } else {
    const std::int64_t gaps = std::max<std::int64_t>(1, max_frames - 1);
    for (std::int64_t i = 0; i < max_frames; ++i) times.push_back(i * duration / gaps);
  }
  return times;
}

Sample molmo2_video(const std::vector<std::int64_t>& times, std::int64_t text,
                    const std::vector<std::int64_t>& annotations) {
  Sample sample = {{Mode::causal, kBegin}};
  for (std::size_t i = 0; i < times.size(); ++i) {
    append_text(sample, timestamp_tokens(times[i], i == 0));
    sample.push_back({Mode::group, kMolmo2FrameTokens});
  }
  if (text > 0) append_text(sample, text);
  append_annotations(sample, annotations);
  return sample;
}

Sample molmo2_images(const std::vector<std::int64_t>& image_tokens, const std::vector<std::int64_t>& annotations) {
  Sample sample = {{Mode::causal, kBegin}};
  for (const std::int64_t tokens : image_tokens) {
    if (image_tokens.size() > 1) append_text(sample, kImageLabel);
    sample.push_back({Mode::group, tokens});
  }
  append_annotations(sample, annotations);
  return sample;
}

}  // namespace marble

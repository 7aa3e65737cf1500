// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Image sizes as generators draw them (docs/workloads.md). No size distribution of web documents is public, so these
// are proposals.

#include "layout/generators/random.hpp"

namespace marble {

/// Pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

/// The square root of the area is lognormal(median side, sigma), the aspect ratio lognormal within [1/2, 2], each side
/// within [150, 6000]. `detail_percent` shrinks both sides.
[[nodiscard]] ImageSize draw_image(Random& random, std::int64_t median_side, std::int64_t sigma,
                                   std::int64_t detail_percent = 100);

/// An image of a web document.
[[nodiscard]] inline ImageSize draw_web_image(Random& random, std::int64_t detail_percent = 100) {
  return draw_image(random, 640, 500, detail_percent);
}

/// A frame of a video: mostly 720p, some upright, square or 640x480.
[[nodiscard]] ImageSize draw_video_size(Random& random, std::int64_t detail_percent = 100);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/images.hpp"

#include "layout/generators/fixed_point.hpp"

#include <algorithm>
#include <array>

namespace marble {
namespace {

constexpr std::int64_t kMinSide = 150;
constexpr std::int64_t kMaxSide = 6000;

std::int64_t side(std::int64_t pixels, std::int64_t detail_percent) {
  return std::clamp(pixels * detail_percent / 100, kMinSide, kMaxSide);
}

}  // namespace

ImageSize draw_image(Random& random, std::int64_t median_side, std::int64_t sigma, std::int64_t detail_percent) {
  const std::int64_t root_area = random.lognormal(median_side, sigma, 1, 2 * kMaxSide);
  // ln(width / height) is normal(0.15, 0.35)
  const std::int64_t log_aspect = std::clamp(kFixedOne * 15 / 100 + random.normal() * 35 / 100, -kFixedLn2, kFixedLn2);
  return {side(scaled(root_area, fixed_exp(-log_aspect / 2)), detail_percent),
          side(scaled(root_area, fixed_exp(log_aspect / 2)), detail_percent)};
}

ImageSize draw_video_size(Random& random, std::int64_t detail_percent) {
  constexpr std::array<ImageSize, 4> kSizes = {{{720, 1280}, {1280, 720}, {480, 640}, {720, 720}}};
  constexpr std::array<std::int64_t, 4> kShares = {60, 15, 15, 10};
  const ImageSize size = kSizes[random.pick(kShares)];
  return {side(size.height, detail_percent), side(size.width, detail_percent)};
}

}  // namespace marble

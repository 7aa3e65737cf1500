// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Qwen3-VL-30B-A3B and Qwen3.8-27B: everything is causal, vision included, so a sample is one span and its inner
// structure only sets its length.

#include "layout/generators/documents.hpp"

namespace marble {

/// Sides become multiples of 32 pixels; a token covers 32 x 32 pixels.
struct QwenImageRule {
  std::int64_t min_tokens = 64;
  std::int64_t max_tokens = 16384;
};
[[nodiscard]] std::int64_t qwen_image_tokens(ImageSize size, const QwenImageRule& rule = {});

/// How a video's frames and their size are chosen: two frames a second share one grid of tokens.
///   per_frame   every grid may have its share of the budget, between 134 and 768 tokens (qwen-vl-utils)
///   whole_video all grids together have at most `budget` tokens (the Hugging Face processor)
struct QwenVideoRule {
  enum class Kind : std::uint8_t { per_frame, whole_video };
  Kind kind = Kind::per_frame;
  std::int64_t budget = 115200;  // tokens
  std::int64_t max_frames = 768;
};
/// All tokens of a video of 30 frames a second: grids, their start and end tokens, their timestamps.
[[nodiscard]] std::int64_t qwen_video_tokens(std::int64_t tenths_of_second, ImageSize size, const QwenVideoRule& rule);

}  // namespace marble

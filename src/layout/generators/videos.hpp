// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Videos and what is asked about them, with the published statistics of Molmo2's video data where there are any.

#include "layout/generators/images.hpp"

#include <vector>

namespace marble {

enum class VideoTask : std::uint8_t { caption, caption_qa, ask_anything, academic_qa, point, track };

/// By Molmo2's sampling rates.
[[nodiscard]] VideoTask draw_video_task(Random& random);

/// Tenths of a second.
[[nodiscard]] std::int64_t draw_duration(Random& random, VideoTask task);

/// One question and its answer, in tokens.
struct Turn {
  std::int64_t question = 0;
  std::int64_t answer = 0;
};

[[nodiscard]] Turn draw_short_turn(Random& random);
[[nodiscard]] Turn draw_long_turn(Random& random);
/// About ten tokens for each of a few points.
[[nodiscard]] Turn draw_point_turn(Random& random);
/// All turns about one video; `num_frames` (two a second) sets the length of a track.
[[nodiscard]] std::vector<Turn> draw_turns(Random& random, VideoTask task, std::int64_t num_frames);

}  // namespace marble

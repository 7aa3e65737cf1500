// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/videos.hpp"

#include <algorithm>
#include <array>

namespace marble {

VideoTask draw_video_task(Random& random) {
  // Rates in thousandths of the whole mixture: captions .049, question answering .182 (split by us), points and tracks
  // .136 each.
  constexpr std::array<std::int64_t, 6> kRates = {49, 36, 28, 118, 136, 136};
  return static_cast<VideoTask>(random.pick(kRates));
}

std::int64_t draw_duration(Random& random, VideoTask task) {
  switch (task) {
    case VideoTask::caption:
    case VideoTask::ask_anything:
      return random.lognormal(600, 600, 100, 1800);
    case VideoTask::caption_qa:
      return random.lognormal(750, 700, 100, 6000);
    case VideoTask::academic_qa:
      return random.lognormal(180, 1000, 20, 6000);
    case VideoTask::point:
      return random.lognormal(600, 800, 20, 630);
    case VideoTask::track:
      break;
  }
  return random.lognormal(180, 600, 30, 1200);
}

Turn draw_short_turn(Random& random) {
  return {random.lognormal(18, 400, 4, 100), random.lognormal(6, 600, 1, 60)};
}

Turn draw_long_turn(Random& random) {
  return {random.lognormal(18, 400, 4, 100), random.lognormal(180, 500, 20, 1500)};
}

Turn draw_point_turn(Random& random) {
  return {random.lognormal(18, 400, 4, 100), 10 * random.geometric(6000, 40)};
}

std::vector<Turn> draw_turns(Random& random, VideoTask task, std::int64_t num_frames) {
  constexpr std::int64_t kMaxTurns = 30;
  std::int64_t mean = 1000;  // turns, thousandths
  if (task == VideoTask::caption) mean = 2800;
  if (task == VideoTask::caption_qa) mean = 5000;
  if (task == VideoTask::ask_anything) mean = 3000;
  if (task == VideoTask::academic_qa) mean = 2000;
  if (task == VideoTask::point) mean = 1350;
  std::vector<Turn> turns(static_cast<std::size_t>(random.geometric(mean, kMaxTurns)));
  for (Turn& turn : turns) {
    if (task == VideoTask::caption) {
      turn = {18, random.lognormal(650, 700, 40, 4096)};
    } else if (task == VideoTask::ask_anything) {
      turn = draw_long_turn(random);
    } else if (task == VideoTask::point) {
      turn = draw_point_turn(random);
    } else if (task == VideoTask::track) {
      turn = {18, std::min<std::int64_t>(num_frames * (6 + 10 * random.between(2, 3)), 6000)};
    } else {
      turn = draw_short_turn(random);
    }
  }
  return turns;
}

}  // namespace marble

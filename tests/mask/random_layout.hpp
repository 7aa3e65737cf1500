// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small random layouts that mix everything spans can say, for property tests.

#include "marble/layout.hpp"
#include "marble/mask.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace marble::testing {

/// What a random layout may hold.
struct RandomLayoutOptions {
  int max_samples = 5;
  int max_spans = 7;
  int max_length = 13;
  bool ids = true;
  std::vector<Mode> modes = {Mode::causal, Mode::full, Mode::noise, Mode::group, Mode::branch};
};

inline Layout random_layout(std::uint32_t seed, const RandomLayoutOptions& options = {}) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint32_t>(n)); };
  Layout layout;
  const int samples = 1 + below(options.max_samples);
  for (int s = 0; s < samples; ++s) {
    std::vector<Span> spans;
    const int count = below(options.max_spans + 1);
    for (int i = 0; i < count; ++i) {
      Span span{options.modes[static_cast<std::size_t>(below(static_cast<int>(options.modes.size())))],
                below(options.max_length + 1)};
      const bool takes_id = span.mode == Mode::noise || span.mode == Mode::group;
      if (options.ids && takes_id && below(3) == 0) span.id = below(2);
      spans.push_back(span);
    }
    layout.add_sample(spans);
  }
  return layout;
}

/// Tracks per token in pack order.
inline std::vector<TokenTracks> token_tracks(const Layout& layout) {
  const Tracks tracks = to_tracks(layout);
  std::vector<TokenTracks> result(tracks.sample.size());
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = {tracks.sample[i], tracks.segment[i], tracks.noise[i], tracks.position[i]};
  return result;
}

inline const std::vector<MaskRule>& mask_rules() {
  static const std::vector<MaskRule> rules = {{0, false}, {1, false}, {3, false}, {3, true}, {9, false}, {9, true}};
  return rules;
}

}  // namespace marble::testing

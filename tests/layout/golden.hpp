// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Samples worked out by hand from the five models' own rules, with their tokens and legal (query, key) pairs.

#include "marble/layout.hpp"

#include <string>
#include <utility>
#include <vector>

namespace marble {

struct GoldenLayout {
  std::string name;
  Layout layout;
  std::int64_t tokens = 0;
  std::int64_t pairs = 0;
  std::int64_t window = 0;  // 0: none
};

namespace golden {

inline constexpr Mode kCausal = Mode::causal;
inline constexpr Mode kFull = Mode::full;
inline constexpr Mode kNoise = Mode::noise;
inline constexpr Mode kGroup = Mode::group;
inline constexpr Mode kBranch = Mode::branch;

/// Ten seconds of video, two questions in branches.
inline std::vector<Span> molmo2_video() {
  std::vector<Span> sample;
  for (int frame = 0; frame < 21; ++frame) {
    sample.push_back({kCausal, frame == 20 ? 6 : 5});
    sample.push_back({kGroup, 83});
  }
  sample.push_back({kBranch, 26});
  sample.push_back({kBranch, 40});
  return sample;
}

/// Two 640x480 images and one question, as plain text or as a branch.
inline std::vector<Span> molmo2_images(Mode question) {
  return {{kCausal, 4}, {kGroup, 752}, {kCausal, 3}, {kGroup, 752}, {question, 60}};
}

/// One 640x480 image with two crops.
inline std::vector<Span> gemma3_document() {
  return {{kCausal, 209}, {kFull, 256}, {kCausal, 15}, {kFull, 256}, {kCausal, 5}, {kFull, 256}, {kCausal, 312}};
}

inline std::vector<Span> bagel_edit() {
  return {{kFull, 2306}, {kFull, 2732}, {kCausal, 26}, {kNoise, 2306},
          {kFull, 2306}, {kFull, 2732}, {kCausal, 20}, {kNoise, 2306}};
}

inline std::vector<Span> bagel_clip() {
  return {{kFull, 2306}, {kFull, 2732},  {kCausal, 26}, {kNoise, 2306}, {kFull, 2306}, {kFull, 2732},
          {kCausal, 24}, {kNoise, 2306}, {kFull, 2306}, {kFull, 2732},  {kCausal, 28}, {kNoise, 2306}};
}

/// Frames of 512x288: 578 tokens each, a noise and a clean copy but for the last.
inline std::vector<Span> bagel_long_video(int frames) {
  std::vector<Span> sample = {{kCausal, 122}};
  for (int frame = 0; frame < frames; ++frame) {
    sample.push_back({kCausal, 26});
    sample.push_back({kNoise, 578});
    if (frame + 1 < frames) sample.push_back({kFull, 578});
  }
  return sample;
}

}  // namespace golden

inline std::vector<GoldenLayout> golden_layouts() {
  using namespace golden;
  std::vector<GoldenLayout> layouts;
  const auto add = [&](std::string name, const std::vector<Span>& sample, std::int64_t tokens, std::int64_t pairs,
                       std::int64_t window = 0) {
    GoldenLayout made{.name = std::move(name), .layout = {}, .tokens = tokens, .pairs = pairs, .window = window};
    made.layout.add_sample(sample);
    layouts.push_back(std::move(made));
  };
  add("qwen document", {{kCausal, 1900}}, 1900, 1805950);
  add("qwen video", {{kCausal, 22040}}, 22040, 242891820);
  add("molmo2 video", molmo2_video(), 1915, 3351683);
  add("molmo2 images, text last", molmo2_images(kCausal), 1571, 2365062);
  add("molmo2 images, branch last", molmo2_images(kBranch), 1571, 2365062);
  add("gemma3 document", gemma3_document(), 1309, 955315);
  add("gemma3 document, local", gemma3_document(), 1309, 914560, 1024);
  add("bagel text to image", {{kCausal, 82}, {kNoise, 4098}}, 4180, 17133043);
  add("bagel image to text", {{kFull, 1566}, {kCausal, 22}, {kCausal, 122}}, 1710, 2688300);
  add("bagel edit", bagel_edit(), 14734, 109663113);
  add("bagel clip", bagel_clip(), 22110, 220584461);
  add("bagel long video, 3 frames", bagel_long_video(3), 3090, 3559772);
  add("bagel long video, 111 frames", bagel_long_video(111), 130746, 4413264464);
  add("bagel long video, 887 frames", bagel_long_video(887), 1047978, 280969401864);
  return layouts;
}

}  // namespace marble

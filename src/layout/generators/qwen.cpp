// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/qwen.hpp"

#include "layout/generators/models.hpp"
#include "layout/generators/videos.hpp"

#include <algorithm>
#include <cmath>

namespace marble {
namespace {

constexpr std::int64_t kFactor = 32;  // pixels a side of a token
constexpr std::int64_t kTokenPixels = kFactor * kFactor;
constexpr std::int64_t kStartAndEnd = 2;
constexpr std::int64_t kTurnTokens = 3 + 5 + 2;  // the chat template around a question and its answer
constexpr std::int64_t kFramesPerSecond = 30;    // of the source
constexpr std::int64_t kMinFrames = 4;

// Pixels are doubles: divisions, products and square roots are exactly rounded everywhere, and none are fused here.
std::int64_t nearest(std::int64_t side) {
  const auto steps = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(side) / kFactor));  // half to even
  return std::max<std::int64_t>(1, steps);
}

/// Tokens of one grid of `size` with `depth` frames counted against the limits.
std::int64_t grid_tokens(ImageSize size, double depth, double min_pixels, double max_pixels) {
  const std::int64_t tokens = nearest(size.height) * nearest(size.width);
  const double pixels = depth * static_cast<double>(tokens * kTokenPixels);
  const double given = depth * static_cast<double>(size.height * size.width);
  const auto height = static_cast<double>(size.height);
  const auto width = static_cast<double>(size.width);
  if (pixels > max_pixels) {
    const double shrink = std::sqrt(given / max_pixels);
    const auto rows = static_cast<std::int64_t>(std::floor(height / shrink / kFactor));
    const auto columns = static_cast<std::int64_t>(std::floor(width / shrink / kFactor));
    return std::max<std::int64_t>(1, rows) * std::max<std::int64_t>(1, columns);
  }
  if (pixels < min_pixels) {
    const double grow = std::sqrt(min_pixels / given);
    const double rows = std::ceil(height * grow / kFactor);
    const double columns = std::ceil(width * grow / kFactor);
    return static_cast<std::int64_t>(rows) * static_cast<std::int64_t>(columns);
  }
  return tokens;
}

std::int64_t video_grid_tokens(ImageSize size, std::int64_t num_frames, const QwenVideoRule& rule) {
  constexpr double kMinFramePixels = 128 * kTokenPixels;
  constexpr double kMaxFramePixels = 768 * kTokenPixels;
  if (rule.kind == QwenVideoRule::Kind::whole_video) {
    constexpr double kMinVideoPixels = 4096;
    const auto max_pixels = static_cast<double>(rule.budget * 2 * kTokenPixels);  // a token covers two frames
    return grid_tokens(size, static_cast<double>(num_frames), kMinVideoPixels, max_pixels);
  }
  const double share = static_cast<double>(rule.budget * kTokenPixels) / static_cast<double>(num_frames) * 2;
  const double max_pixels = std::max(std::min(kMaxFramePixels, share), std::floor(kMinFramePixels * 1.05));
  return grid_tokens(size, 1, kMinFramePixels, max_pixels);
}

/// Frame `i` of `count` evenly spaced ones, first and last included, half to even.
std::int64_t frame_index(std::int64_t i, std::int64_t count, std::int64_t total) {
  const std::int64_t twice = 2 * i * (total - 1);
  const std::int64_t divisor = 2 * (count - 1);
  const std::int64_t index = twice / divisor;
  const std::int64_t rest = 2 * (twice % divisor);
  return rest > divisor || (rest == divisor && index % 2 != 0) ? index + 1 : index;
}

/// "<12.3 seconds>": five tokens and one for each digit before the point.
std::int64_t timestamp_tokens(std::int64_t first_frame, std::int64_t second_frame) {
  const std::int64_t frames = first_frame + second_frame;  // twice the mean time, in source frames
  const std::int64_t tenths = (frames * 10 + kFramesPerSecond) / (2 * kFramesPerSecond);
  std::int64_t digits = 1;
  for (std::int64_t rest = tenths / 100; rest > 0; rest /= 10) ++digits;
  return 5 + digits;
}

Recipe qwen_recipe(std::function<std::int64_t(Random&)> draw_length) {
  return {.draw = [draw_length = std::move(draw_length)](Random random, SampleLimits& limits) -> Sample {
            limits.items = 1;
            return {{Mode::causal, draw_length(random)}};
          },
          .smallest = {{{Mode::causal, 1}}}};
}

Recipe document_recipe(const ParameterReader& parameters) {
  const std::int64_t min_tokens = parameters.integer("min_image_tokens", 1, 16384);
  const QwenImageRule rule{min_tokens, parameters.integer("max_image_tokens", min_tokens, 1 << 20)};
  return qwen_recipe([rule](Random& random) {
    constexpr std::int64_t kEndOfText = 1;
    const Document document = draw_document(random, std::numeric_limits<std::int64_t>::max());
    std::int64_t length = kEndOfText;
    for (const std::int64_t text : document.texts) length += text;
    for (const ImageSize& image : document.images) length += kStartAndEnd + qwen_image_tokens(image, rule);
    return length;
  });
}

Recipe video_recipe(const ParameterReader& parameters) {
  QwenVideoRule rule;
  if (parameters.one_of("rule", {"per-frame", "whole-video"}) == "whole-video")
    rule.kind = QwenVideoRule::Kind::whole_video;
  if (rule.kind == QwenVideoRule::Kind::whole_video) rule.budget = 12288;
  if (parameters.text("budget") != "auto") rule.budget = parameters.integer("budget", 256, 1 << 24);
  rule.max_frames = parameters.integer("frames", kMinFrames, 1 << 20);
  const std::int64_t long_share = parameters.integer("long_percent", 0, 100) * 10;
  return qwen_recipe([rule, long_share](Random& random) {
    const bool is_long = random.chance(long_share);
    const VideoTask task = draw_video_task(random);
    // Long videos: 600 to 3,600 seconds, log-uniform (log2 6 = 2.585).
    const std::int64_t duration = is_long ? random.log_uniform(6000, 2585) : draw_duration(random, task);
    std::int64_t length = qwen_video_tokens(duration, draw_video_size(random), rule);
    const std::int64_t track_frames = std::min(duration / 5, rule.max_frames);
    for (const Turn& turn : draw_turns(random, task, track_frames)) length += kTurnTokens + turn.question + turn.answer;
    return length;
  });
}

GeneratorInfo qwen3vl_info(std::string name, std::string description, std::vector<GeneratorParameter> parameters) {
  return {.name = std::move(name),
          .model = "Qwen3-VL-30B-A3B",
          .description = std::move(description),
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 128,
          .softmax_scale = 1.0 / std::sqrt(128.0),
          .layers = {{.window = 0, .count = 48}},
          .modes = {Mode::causal},
          .parameters = std::move(parameters)};
}

/// Only 16 of its 64 layers are attention; the others are recurrent and need the given token order.
GeneratorInfo qwen38_info(std::string name, GeneratorInfo info) {
  info.name = std::move(name);
  info.model = "Qwen3.8-27B";
  info.heads = 24;
  info.head_dim = 256;
  info.softmax_scale = 1.0 / 16.0;
  info.layers = {{.window = 0, .count = 16}};
  info.order_dependent = true;
  return info;
}

}  // namespace

std::int64_t qwen_image_tokens(ImageSize size, const QwenImageRule& rule) {
  return grid_tokens(size, 1, static_cast<double>(rule.min_tokens * kTokenPixels),
                     static_cast<double>(rule.max_tokens * kTokenPixels));
}

std::int64_t qwen_video_tokens(std::int64_t tenths_of_second, ImageSize size, const QwenVideoRule& rule) {
  const std::int64_t total = tenths_of_second * kFramesPerSecond / 10;
  const std::int64_t wanted = std::min(std::max(tenths_of_second / 5, kMinFrames), std::min(rule.max_frames, total));
  const std::int64_t num_frames = std::max<std::int64_t>(2, wanted - wanted % 2);
  const std::int64_t grid = video_grid_tokens(size, num_frames, rule);
  std::int64_t tokens = num_frames / 2 * (kStartAndEnd + grid);
  for (std::int64_t i = 0; i < num_frames; i += 2)
    tokens += timestamp_tokens(frame_index(i, num_frames, total), frame_index(i + 1, num_frames, total));
  return tokens;
}

std::vector<Generator> qwen_generators() {
  const GeneratorInfo documents =
      qwen3vl_info("qwen3vl-docs", "web documents of text and images",
                   {{"min_image_tokens", "smaller images are enlarged to this many tokens", "64"},
                    {"max_image_tokens", "larger images are reduced to this many tokens", "16384"}});
  const GeneratorInfo videos = qwen3vl_info(
      "qwen3vl-video", "videos with questions and answers, some of them 10 to 60 minutes long",
      {{"rule", "per-frame: each pair of frames gets its share of the budget; whole-video: the budget caps the sum",
        "per-frame"},
       {"budget", "vision tokens of a video; auto: 115200, or 12288 for whole-video (technical report: 229376)",
        "auto"},
       {"frames", "the most frames taken from a video, two a second; 2048 in the technical report", "768"},
       {"long_percent", "share of videos of 600 to 3600 seconds", "20"}});
  return {{documents, document_recipe},
          {videos, video_recipe},
          {qwen38_info("qwen38-docs", documents), document_recipe},
          {qwen38_info("qwen38-video", videos), video_recipe}};
}

}  // namespace marble

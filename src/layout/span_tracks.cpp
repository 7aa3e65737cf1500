// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/span_tracks.hpp"

#include <map>
#include <tuple>

namespace marble {
namespace {

/// Numbers the bidirectional sets and the noise sets of one sample after another.
class SetNumbers {
 public:
  void next_sample() {
    groups_.clear();
    noises_.clear();
  }

  void assign(const Span& span, SpanTracks& tracks) {
    switch (span.mode) {
      case Mode::causal:
        return;
      case Mode::full:
        tracks.segment = num_segments_++;
        return;
      case Mode::branch:
        tracks.noise = num_noises_++;
        return;
      case Mode::group: {
        const auto [found, added] = groups_.try_emplace(span.id, num_segments_);
        tracks.segment = found->second;
        if (added) ++num_segments_;
        return;
      }
      case Mode::noise:
        assign_noise(span, tracks);
        return;
    }
  }

 private:
  void assign_noise(const Span& span, SpanTracks& tracks) {
    if (span.id != Span::kNoId) {
      const auto [found, added] = noises_.try_emplace(span.id, num_segments_, num_noises_);
      std::tie(tracks.segment, tracks.noise) = found->second;
      if (!added) return;
    }
    tracks.segment = num_segments_++;
    tracks.noise = num_noises_++;
  }

  std::int32_t num_segments_ = 0;
  std::int32_t num_noises_ = 0;
  std::map<std::int32_t, std::int32_t> groups_;                           // id -> segment
  std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> noises_;  // id -> segment, noise
};

}  // namespace

std::vector<SpanTracks> span_tracks(const Layout& layout) {
  std::vector<SpanTracks> result;
  result.reserve(layout.spans.size());
  SetNumbers numbers;
  std::int64_t position = 0;
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    numbers.next_sample();
    for (const Span& span : layout.sample(s)) {
      if (span.length == 0) continue;
      SpanTracks tracks{
          .position = position, .length = span.length, .sample = static_cast<std::int32_t>(s), .mode = span.mode};
      numbers.assign(span, tracks);
      result.push_back(tracks);
      position += span.length;
    }
  }
  return result;
}

}  // namespace marble

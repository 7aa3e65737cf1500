// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Spans and tracks meet in runs: maximal stretches of tokens with equal sample, segment and noise.
//   layout -> runs   numbers the sets: one segment per full span, noise set or group set, one noise id per noise set or
//                    branch span; empty spans take no number, so layouts that differ only in them have equal tracks
//   runs -> layout   names a mode for each run, refusing what spans cannot say, and numbers sets within each sample

#include "marble/error.hpp"
#include "marble/layout.hpp"

#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace marble {
namespace {

struct Run {
  std::int32_t sample = 0;
  std::int32_t segment = -1;
  std::int32_t noise = -1;
  std::int64_t begin = 0;
  std::int64_t length = 0;

  [[nodiscard]] bool same_tracks(const Run& other) const {
    return sample == other.sample && segment == other.segment && noise == other.noise;
  }
};

class SetNumbers {
 public:
  void next_sample() {
    groups_.clear();
    noises_.clear();
  }

  /// The segment and noise of a span of at least one token.
  void assign(const Span& span, Run& run) {
    switch (span.mode) {
      case Mode::causal:
        return;
      case Mode::full:
        run.segment = num_segments_++;
        return;
      case Mode::branch:
        run.noise = num_noises_++;
        return;
      case Mode::group:
        run.segment = groups_.try_emplace(span.id, num_segments_).first->second;
        if (run.segment == num_segments_) ++num_segments_;
        return;
      case Mode::noise:
        assign_noise(span, run);
        return;
    }
  }

 private:
  void assign_noise(const Span& span, Run& run) {
    if (span.id != Span::kNoId) {
      const auto [found, added] = noises_.try_emplace(span.id, num_segments_, num_noises_);
      std::tie(run.segment, run.noise) = found->second;
      if (!added) return;
    }
    run.segment = num_segments_++;
    run.noise = num_noises_++;
  }

  std::int32_t num_segments_ = 0;
  std::int32_t num_noises_ = 0;
  std::map<std::int32_t, std::int32_t> groups_;
  std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> noises_;
};

void append(std::vector<Run>& runs, const Run& run) {
  if (!runs.empty() && runs.back().same_tracks(run)) {
    runs.back().length += run.length;
  } else {
    runs.push_back(run);
  }
}

std::vector<Run> runs_of(const Layout& layout) {
  std::vector<Run> runs;
  SetNumbers numbers;
  std::int64_t begin = 0;
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    numbers.next_sample();
    for (const Span& span : layout.sample(s)) {
      if (span.length == 0) continue;
      Run run{.sample = static_cast<std::int32_t>(s), .begin = begin, .length = span.length};
      numbers.assign(span, run);
      append(runs, run);
      begin += span.length;
    }
  }
  return runs;
}

/// What has been seen of one segment or noise id.
struct Set {
  std::int32_t sample = 0;
  std::int32_t other = -1;  // the noise of a segment, the segment of a noise id
  std::int64_t begin = 0;   // its first token
  std::int64_t num_runs = 0;
};
using Sets = std::unordered_map<std::int32_t, Set>;

/// Adds `run` to the set `id` of `sets`, refusing a second sample or a second partner on the other track.
void join(Sets& sets, std::string_view track, std::int32_t id, std::string_view other_track, std::int32_t other,
          const Run& run) {
  Set& set = sets.try_emplace(id, Set{run.sample, other, run.begin, 0}).first->second;
  require(set.sample == run.sample, "{} {} at token {} is in sample {}, but at token {} in sample {}", track, id,
          set.begin, set.sample, run.begin, run.sample);
  require(set.other == other, "{} {} has {} {} at token {}, but {} at token {}", track, id, other_track, set.other,
          set.begin, other, run.begin);
  ++set.num_runs;
  require(set.num_runs == 1 || track != "noise" || other >= 0,
          "noise {} has no segment (a branch) and returns at token {} after tokens from {}; a branch is one span", id,
          run.begin, set.begin);
}

void check_samples(const std::vector<Run>& runs) {
  std::unordered_set<std::int32_t> seen;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i > 0 && runs[i].sample == runs[i - 1].sample) continue;
    require(seen.insert(runs[i].sample).second, "sample {} returns at token {} after another sample", runs[i].sample,
            runs[i].begin);
  }
}

/// Ids within one sample, in order of appearance.
class LocalIds {
 public:
  void next_sample() { ids_.clear(); }
  [[nodiscard]] std::int32_t of(std::int32_t set) {
    return ids_.try_emplace(set, static_cast<std::int32_t>(ids_.size())).first->second;
  }

 private:
  std::map<std::int32_t, std::int32_t> ids_;
};

Layout layout_from_runs(const std::vector<Run>& runs) {
  check_samples(runs);
  Sets segments;
  Sets noises;
  std::unordered_map<std::int32_t, std::int32_t> groups_of_sample;  // sets of several runs
  for (const Run& run : runs) {
    if (run.segment >= 0) join(segments, "segment", run.segment, "noise", run.noise, run);
    if (run.noise >= 0) join(noises, "noise", run.noise, "segment", run.segment, run);
    if (run.segment >= 0 && run.noise < 0 && segments[run.segment].num_runs == 2) ++groups_of_sample[run.sample];
  }

  Layout layout;
  LocalIds groups;
  LocalIds noise_sets;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (i > 0 && run.sample != runs[i - 1].sample) {
      layout.sample_begin.push_back(static_cast<std::int64_t>(layout.spans.size()));
      groups.next_sample();
      noise_sets.next_sample();
    }
    Span span{Mode::causal, run.length};
    const bool several_runs = run.segment >= 0 && segments[run.segment].num_runs > 1;
    if (run.noise >= 0) {
      span.mode = run.segment >= 0 ? Mode::noise : Mode::branch;
      if (several_runs) span.id = noise_sets.of(run.segment);
    } else if (run.segment >= 0) {
      span.mode = several_runs ? Mode::group : Mode::full;
      if (several_runs && groups_of_sample[run.sample] > 1) span.id = groups.of(run.segment);
    }
    layout.spans.push_back(span);
  }
  if (!runs.empty()) layout.sample_begin.push_back(static_cast<std::int64_t>(layout.spans.size()));
  return layout;
}

}  // namespace

Tracks to_tracks(const Layout& layout) {
  validate(layout);
  Tracks tracks;
  const auto tokens = static_cast<std::size_t>(layout.num_tokens());
  tracks.sample.reserve(tokens);
  tracks.segment.reserve(tokens);
  tracks.noise.reserve(tokens);
  tracks.position.reserve(tokens);
  for (const Run& run : runs_of(layout)) {
    const auto length = static_cast<std::size_t>(run.length);
    tracks.sample.insert(tracks.sample.end(), length, run.sample);
    tracks.segment.insert(tracks.segment.end(), length, run.segment);
    tracks.noise.insert(tracks.noise.end(), length, run.noise);
  }
  for (std::size_t i = 0; i < tokens; ++i) tracks.position.push_back(static_cast<std::int64_t>(i));
  return tracks;
}

Layout layout_from_tracks(std::span<const std::int32_t> sample, std::span<const std::int32_t> segment,
                          std::span<const std::int32_t> noise, std::span<const std::int64_t> position) {
  require(segment.size() == sample.size() && noise.size() == sample.size() && position.size() == sample.size(),
          "tracks differ in length: sample {}, segment {}, noise {}, position {}", sample.size(), segment.size(),
          noise.size(), position.size());
  std::vector<Run> runs;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const auto token = static_cast<std::int64_t>(i);
    require(position[i] == token, "position {} at token {}: it is the index in the pack, so {} is expected",
            position[i], token, token);
    require(sample[i] >= 0, "sample {} at token {} is negative", sample[i], token);
    require(segment[i] >= -1, "segment {} at token {} is below -1 (none)", segment[i], token);
    require(noise[i] >= -1, "noise {} at token {} is below -1 (none)", noise[i], token);
    append(runs, {sample[i], segment[i], noise[i], token, 1});
  }
  return layout_from_runs(runs);
}

Layout normalize(const Layout& layout) {
  validate(layout);
  return layout_from_runs(runs_of(layout));
}

}  // namespace marble

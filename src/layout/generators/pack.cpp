// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/recipe.hpp"

#include "marble/error.hpp"

#include <algorithm>

namespace marble {
namespace {

constexpr std::int64_t kMinText = 16;    // longer than any label, timestamp or separator
constexpr int kMaxMisses = 16;           // samples that fit in no form before the pack is closed
constexpr std::int64_t kFillShare = 50;  // fill is at most 1/50 of the pack

using ModeSet = unsigned;

ModeSet modes_of(const Sample& sample) {
  ModeSet modes = 0;
  for (const Span& span : sample) modes |= 1U << static_cast<unsigned>(span.mode);
  return modes;
}

bool is_text(const Span& span) {
  return span.mode == Mode::causal || span.mode == Mode::branch;
}

/// Shortens text spans, the last ones first, until `sample` has at most `room` tokens; false when that takes more.
bool trim_text(Sample& sample, std::int64_t room) {
  std::int64_t excess = num_tokens(sample) - room;
  for (auto span = sample.rbegin(); span != sample.rend() && excess > 0; ++span) {
    if (!is_text(*span) || span->length <= kMinText) continue;
    const std::int64_t cut = std::min(excess, span->length - kMinText);
    span->length -= cut;
    excess -= cut;
  }
  return excess <= 0;
}

/// Draws under `limits`, lowering limits.items to what was used; empty when the sample does not fit in `room`.
Sample try_draw(const Recipe& recipe, const Random& random, SampleLimits& limits, std::int64_t room) {
  Sample sample = recipe.draw(random, limits);
  if (!trim_text(sample, room)) sample.clear();
  return sample;
}

/// The sample as drawn when it fits in `room`, else its largest form that does; empty when none does.
Sample draw_within(const Recipe& recipe, const Random& random, std::int64_t room) {
  constexpr std::int64_t kDetailStep = 10;
  SampleLimits smallest{.items = 1, .detail_percent = 0};
  for (SampleLimits limits; limits.detail_percent >= 0;
       limits = {.detail_percent = limits.detail_percent - kDetailStep}) {
    while (true) {
      Sample sample = try_draw(recipe, random, limits, room);
      if (!sample.empty()) return sample;
      if (limits.items <= 1) break;
      limits.items -= std::max<std::int64_t>(1, limits.items / 32);
    }
    const bool first = limits.detail_percent == 100;
    if (first && try_draw(recipe, random, smallest, room).empty()) return {};  // spares the search
  }
  return {};
}

class Packer {
 public:
  Packer(const Recipe& recipe, std::int64_t tokens) : recipe_(recipe), tokens_(tokens), room_(tokens) {
    require(tokens <= kMaxTokens, "tokens {} is above 2^40", tokens);
    for (const Sample& sample : recipe.smallest) missing_ |= modes_of(sample);
    require(reserve(missing_) <= tokens, "tokens {} is too few for one span of each mode; this generator needs {}",
            tokens, reserve(missing_));
  }

  Layout run(std::uint64_t seed) {
    int misses = 0;
    for (std::uint64_t index = 0; room_ > 0 && misses < kMaxMisses; ++index) {
      const Random random(seed, index);
      Sample sample = draw_within(recipe_, random, room_);
      if (num_tokens(sample) + reserve(missing_ & ~modes_of(sample)) > room_)
        sample = draw_within(recipe_, random, room_ - reserve(missing_));
      misses = sample.empty() ? misses + 1 : 0;
      if (!sample.empty()) {
        add(std::move(sample));
      } else if (missing_ != 0) {
        add_missing();
      }
    }
    if (missing_ != 0) add_missing();
    close();
    Layout layout;
    for (const Sample& sample : samples_) layout.add_sample(sample);
    return layout;
  }

 private:
  /// The tokens of the smallest samples that hold a mode of `missing`.
  [[nodiscard]] std::int64_t reserve(ModeSet missing) const {
    std::int64_t tokens = 0;
    for (const Sample& sample : recipe_.smallest)
      if ((modes_of(sample) & missing) != 0) tokens += num_tokens(sample);
    return tokens;
  }

  void add(Sample sample) {
    room_ -= num_tokens(sample);
    missing_ &= ~modes_of(sample);
    samples_.push_back(std::move(sample));
  }

  void add_missing() {
    for (const Sample& sample : recipe_.smallest)
      if ((modes_of(sample) & missing_) != 0) add(sample);
  }

  /// Gives the rest to fill or, where that is too much fill, to the longest text of the last sample that has text.
  void close() {
    if (room_ == 0) return;
    if (room_ <= tokens_ / kFillShare) return add({{Mode::causal, room_}});
    for (auto sample = samples_.rbegin(); sample != samples_.rend(); ++sample) {
      Span* longest = nullptr;
      for (Span& span : *sample)
        if (is_text(span) && (longest == nullptr || span.length > longest->length)) longest = &span;
      if (longest == nullptr) continue;
      longest->length += room_;
      room_ = 0;
      return;
    }
  }

  const Recipe& recipe_;
  std::int64_t tokens_;
  std::int64_t room_;
  ModeSet missing_ = 0;
  std::vector<Sample> samples_;
};

}  // namespace

std::int64_t num_tokens(const Sample& sample) {
  std::int64_t tokens = 0;
  for (const Span& span : sample) tokens += span.length;
  return tokens;
}

void append_text(Sample& sample, std::int64_t length) {
  if (!sample.empty() && sample.back().mode == Mode::causal) {
    sample.back().length += length;
  } else {
    sample.push_back({Mode::causal, length});
  }
}

Layout pack(const Recipe& recipe, std::int64_t tokens, std::uint64_t seed) {
  return Packer(recipe, tokens).run(seed);
}

}  // namespace marble

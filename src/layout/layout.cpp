// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/layout.hpp"

#include "base/fnv.hpp"

#include "marble/error.hpp"

#include <limits>

namespace marble {
namespace {

constexpr std::size_t kMaxSpans = std::numeric_limits<std::int32_t>::max();  // tracks number sets with 32 bits
constexpr Mode kModes[kNumModes] = {Mode::causal, Mode::full, Mode::noise, Mode::group, Mode::branch};

void validate_boundaries(const Layout& layout) {
  const auto& begin = layout.sample_begin;
  require(!begin.empty() && begin.front() == 0, "sample_begin must start with 0");
  for (std::size_t s = 1; s < begin.size(); ++s)
    require(begin[s - 1] <= begin[s], "sample {} ends at span {} but begins at span {}", s - 1, begin[s], begin[s - 1]);
  require(begin.back() == static_cast<std::int64_t>(layout.spans.size()),
          "sample_begin ends at span {} but the layout has {} spans", begin.back(), layout.spans.size());
  require(layout.spans.size() <= kMaxSpans && begin.size() <= kMaxSpans,
          "{} samples and {} spans: a layout holds fewer than 2^31 of each", begin.size() - 1, layout.spans.size());
}

void validate_span(const Span& span, std::int64_t sample, std::size_t index) {
  require(static_cast<int>(span.mode) < kNumModes, "sample {} span {}: mode {} is out of range", sample, index,
          static_cast<int>(span.mode));
  require(span.length >= 0, "sample {} span {}: length {} is negative", sample, index, span.length);
  require(span.length <= kMaxTokens, "sample {} span {}: length {} is above 2^40 tokens", sample, index, span.length);
  require(span.id >= Span::kNoId, "sample {} span {}: id {} is below {} (no id)", sample, index, span.id, Span::kNoId);
  require(span.id == Span::kNoId || span.mode == Mode::noise || span.mode == Mode::group,
          "sample {} span {}: mode {} takes no id, got {}; only noise and group do", sample, index,
          to_string(span.mode), span.id);
}

}  // namespace

std::string_view to_string(Mode mode) {
  switch (mode) {
    case Mode::causal:
      return "causal";
    case Mode::full:
      return "full";
    case Mode::noise:
      return "noise";
    case Mode::group:
      return "group";
    case Mode::branch:
      return "branch";
  }
  throw InternalError("mode out of range");
}

Mode parse_mode(std::string_view name) {
  for (const Mode mode : kModes)
    if (name == to_string(mode)) return mode;
  throw InvalidArgument(fmt::format("mode '{}' is not one of causal, full, noise, group, branch", name));
}

std::span<const Span> Layout::sample(std::int64_t s) const {
  ensure(s >= 0 && s < num_samples(), "sample {} of a layout with {} samples", s, num_samples());
  const auto begin = static_cast<std::size_t>(sample_begin[static_cast<std::size_t>(s)]);
  const auto end = static_cast<std::size_t>(sample_begin[static_cast<std::size_t>(s) + 1]);
  return std::span(spans).subspan(begin, end - begin);
}

std::int64_t Layout::num_tokens() const {
  std::int64_t tokens = 0;
  for (const Span& span : spans) tokens += span.length;
  return tokens;
}

void Layout::add_sample(std::span<const Span> sample) {
  spans.insert(spans.end(), sample.begin(), sample.end());
  sample_begin.push_back(static_cast<std::int64_t>(spans.size()));
}

void validate(const Layout& layout) {
  validate_boundaries(layout);
  std::int64_t tokens = 0;
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    const auto sample = layout.sample(s);
    for (std::size_t i = 0; i < sample.size(); ++i) {
      validate_span(sample[i], s, i);
      tokens += sample[i].length;
      require(tokens <= kMaxTokens, "sample {} span {}: the layout grows beyond 2^40 tokens", s, i);
    }
  }
}

Layout layout_from_samples(std::span<const std::vector<Span>> samples) {
  Layout layout;
  for (const auto& sample : samples) layout.add_sample(sample);
  validate(layout);
  return layout;
}

Layout layout_from_cu_seqlens(std::span<const std::int64_t> cu_seqlens) {
  require(!cu_seqlens.empty(), "cu_seqlens is empty; it holds at least one 0");
  require(cu_seqlens[0] == 0, "cu_seqlens starts with {}; it must start with 0", cu_seqlens[0]);
  Layout layout;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    require(cu_seqlens[i] >= cu_seqlens[i - 1], "cu_seqlens[{}] = {} is below cu_seqlens[{}] = {}", i, cu_seqlens[i],
            i - 1, cu_seqlens[i - 1]);
    layout.add_sample(std::vector<Span>{{Mode::causal, cu_seqlens[i] - cu_seqlens[i - 1]}});
  }
  validate(layout);
  return layout;
}

std::uint64_t digest(const Layout& layout) {
  std::uint64_t hash = fnv1a(kFnvOffset, layout.sample_begin.size());
  for (const std::int64_t begin : layout.sample_begin) hash = fnv1a(hash, static_cast<std::uint64_t>(begin));
  for (const Span& span : layout.spans) {
    hash = fnv1a(hash, static_cast<std::uint64_t>(span.mode));
    hash = fnv1a(hash, static_cast<std::uint64_t>(span.length));
    hash = fnv1a(hash, static_cast<std::uint64_t>(std::int64_t{span.id}));
  }
  return hash;
}

}  // namespace marble

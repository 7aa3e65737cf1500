// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "mask/visibility.hpp"

#include <algorithm>

namespace marble {
namespace {

constexpr std::int64_t kNone = VisibleRule::kNoOffset;

struct Low {
  std::int64_t min, offset;
};
struct High {
  std::int64_t max, min, offset;
};

constexpr Low low_constant(std::int64_t value) {
  return {value, kNone};
}
constexpr High high_constant(std::int64_t value) {
  return {value, value, kNone};
}

constexpr VisibleRule make_rule(Low low, High high) {
  return {low.min, low.offset, high.max, high.min, high.offset};
}

void add(Visibility& visibility, const CanonicalSpan& span, Low low, High high) {
  visibility.entries.push_back({span.canonical, span.canonical_end(), make_rule(low, high)});
}

// ---- closed forms: one entry a span ----

/// True when no set of the sample has several spans and, in stack order, nothing is stacked: then the order of the
/// sample is the given one and every span's keys are seen by one range, windows included.
bool sequence_form_holds(std::span<const CanonicalSpan> sample, Canonical canonical) {
  std::int32_t last_set = -1;  // segments are numbered in order of appearance: a set that returns is not new
  for (const CanonicalSpan& span : sample) {
    if (!is_stacked(span.mode)) continue;
    if (canonical == Canonical::stack || span.segment <= last_set) return false;
    last_set = span.segment;
  }
  return true;
}

void add_sequence_form(Visibility& visibility, std::span<const CanonicalSpan> sample, const MaskRule& rule) {
  const std::int64_t sample_end = sample.back().canonical_end();
  const std::int64_t window = rule.window;
  for (const CanonicalSpan& span : sample) {
    const std::int64_t begin = span.canonical, end = span.canonical_end();
    const std::int64_t last = span.noise >= 0 ? end : sample_end;  // where the key's readers end
    const bool bidirectional = span.segment >= 0;
    const Low low = !bidirectional ? Low{begin, 0} : rule.clamp ? Low{begin, 1 - window} : low_constant(begin);
    const std::int64_t reach = bidirectional && !rule.clamp ? end : begin;
    add(visibility, span, low, window == 0 ? high_constant(last) : High{last, std::min(reach, last), window});
  }
}

/// True without a window when the sample's stacked spans are noise spans, each a set of its own, or group spans of one
/// set.
bool stack_form_holds(std::span<const CanonicalSpan> sample, const MaskRule& rule) {
  if (rule.window != 0) return false;
  const CanonicalSpan* previous = nullptr;
  for (const CanonicalSpan& span : sample) {
    if (!is_stacked(span.mode)) continue;
    if (previous != nullptr) {
      if (previous->mode != span.mode) return false;
      // Stacked spans come last one first, so the segments of sets of one span descend.
      const bool same_set = previous->segment == span.segment;
      if (span.mode == Mode::group ? !same_set : span.segment >= previous->segment) return false;
    }
    previous = &span;
  }
  return true;
}

/// Text comes first, in order; stacked spans follow, last one first. A text key is read by the text after it and by the
/// stacked spans after it, which are the first ones of the stack. A group key is read by the text after its span and
/// by the whole stack.
void add_stack_form(Visibility& visibility, std::span<const CanonicalSpan> sample) {
  const std::int64_t sample_begin = sample.front().canonical, sample_end = sample.back().canonical_end();
  const auto first_stacked =
      std::find_if(sample.begin(), sample.end(), [](const CanonicalSpan& span) { return is_stacked(span.mode); });
  const std::int64_t text_end = first_stacked == sample.end() ? sample_end : first_stacked->canonical;
  auto later_stacked = sample.rbegin();  // the earliest stacked span that the text walk has not passed
  std::int64_t stacked_after = sample_end - text_end;
  for (auto text = sample.begin(); text != first_stacked; ++text) {
    while (later_stacked != sample.rend() && is_stacked(later_stacked->mode) &&
           later_stacked->position < text->position) {
      stacked_after -= later_stacked->length;
      ++later_stacked;
    }
    const Low low = text->segment >= 0 ? low_constant(text->canonical) : Low{text->canonical, 0};
    add(visibility, *text, low, high_constant(text->noise >= 0 ? text->canonical_end() : text_end + stacked_after));
  }
  std::int64_t stacked_length = sample_end - text_end;  // of this span and those before it in the pack
  for (auto span = first_stacked; span != sample.end(); ++span) {
    stacked_length -= span->length;
    const std::int64_t text_before = span->position - sample_begin - stacked_length;
    if (span->mode == Mode::noise)
      add(visibility, *span, low_constant(span->canonical), high_constant(span->canonical_end()));
    else
      add(visibility, *span, low_constant(sample_begin + text_before), high_constant(sample_end));
  }
}

// ---- every pair of spans ----

/// Adds the queries of `query` that see keys of `key`, joined to the entry before when the ranges touch.
void add_pair(std::vector<VisibleEntry>& entries, std::size_t first, const CanonicalSpan& key,
              const CanonicalSpan& query, const MaskRule& rule) {
  if (key.noise >= 0 && query.noise != key.noise) return;
  const bool same_span = query.segment >= 0 && query.segment == key.segment;
  const std::int64_t begin = query.canonical, end = query.canonical_end();
  const std::int64_t shift = query.shift() - key.shift();  // a query at the key's position has index key + shift
  const std::int64_t window = rule.window;
  Low low = same_span ? (rule.clamp ? Low{begin, shift + 1 - window} : low_constant(begin)) : Low{begin, shift};
  High high = window == 0 || (same_span && !rule.clamp) ? high_constant(end) : High{end, begin, shift + window};
  // Keys with at least one query: those with low < end and high > begin; both ends ascend with the key.
  std::int64_t key_begin = key.canonical, key_end = key.canonical_end();
  if (high.offset != kNone) key_begin = std::max(key_begin, begin - high.offset + 1);
  if (low.offset != kNone) key_end = std::min(key_end, end - low.offset);
  if (key_begin >= key_end) return;
  if (low.offset != kNone && key_end - 1 + low.offset <= low.min) low = low_constant(low.min);
  if (high.offset != kNone && key_begin + high.offset >= high.max) high = high_constant(high.max);
  if (entries.size() > first) {
    VisibleEntry& previous = entries.back();
    const bool touches = previous.rule.hi_offset == kNone && low.offset == kNone && previous.rule.hi_max == low.min;
    if (touches && previous.key_begin == key_begin && previous.key_end == key_end) {
      previous.rule = make_rule({previous.rule.lo_min, previous.rule.lo_offset}, high);
      return;
    }
  }
  entries.push_back({key_begin, key_end, make_rule(low, high)});
}

void add_pairwise(Visibility& visibility, std::span<const CanonicalSpan> sample, const MaskRule& rule) {
  for (const CanonicalSpan& key : sample) {
    const std::size_t first = visibility.entries.size();
    for (const CanonicalSpan& query : sample) add_pair(visibility.entries, first, key, query, rule);
    const std::size_t count = visibility.entries.size() - first;
    const VisibleEntry& entry = visibility.entries[first];  // every key sees itself: there is one
    if (count != 1 || entry.key_begin != key.canonical || entry.key_end != key.canonical_end())
      visibility.single_range = false;
    visibility.entry_begin.push_back(static_cast<std::int64_t>(visibility.entries.size()));
  }
}

}  // namespace

std::span<const VisibleEntry> Visibility::of_span(std::int64_t span) const {
  const auto begin = static_cast<std::size_t>(entry_begin[static_cast<std::size_t>(span)]);
  const auto end = static_cast<std::size_t>(entry_begin[static_cast<std::size_t>(span) + 1]);
  return std::span(entries).subspan(begin, end - begin);
}

Visibility make_visibility(const CanonicalOrder& order, Canonical canonical, const MaskRule& rule) {
  Visibility visibility;
  visibility.entries.reserve(order.spans.size());
  visibility.entry_begin.reserve(order.spans.size() + 1);
  visibility.entry_begin.push_back(0);
  for (std::int64_t s = 0; s < order.num_samples(); ++s) {
    const std::span<const CanonicalSpan> sample = order.sample(s);
    if (sequence_form_holds(sample, canonical))
      add_sequence_form(visibility, sample, rule);
    else if (canonical == Canonical::stack && stack_form_holds(sample, rule))
      add_stack_form(visibility, sample);
    else {
      add_pairwise(visibility, sample, rule);
      continue;
    }
    while (visibility.entry_begin.size() <=
           static_cast<std::size_t>(order.sample_begin[static_cast<std::size_t>(s) + 1]))
      visibility.entry_begin.push_back(visibility.entry_begin.back() + 1);
  }
  return visibility;
}

Visibility make_visibility_pairwise(const CanonicalOrder& order, const MaskRule& rule) {
  Visibility visibility;
  visibility.entry_begin.push_back(0);
  for (std::int64_t s = 0; s < order.num_samples(); ++s) add_pairwise(visibility, order.sample(s), rule);
  return visibility;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The paper's own rules (section 04): its strategy table, and the switch to chunked ring attention.

#include "marble/cost.hpp"

#include <algorithm>

namespace marble {
namespace {

constexpr std::int64_t kLongSpan = 512;        // "median full or noise span is at least 512 tokens"
constexpr std::int64_t kLongSample = 128'000;  // "samples may exceed 128k-1M tokens"

/// The upper median length of the full and noise spans; 0 without any.
std::int64_t median_dense_span(const Layout& layout) {
  std::vector<std::int64_t> lengths;
  for (const Span& span : layout.spans)
    if (span.length > 0 && (span.mode == Mode::full || span.mode == Mode::noise)) lengths.push_back(span.length);
  if (lengths.empty()) return 0;
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return *middle;
}

bool mostly_long_samples(const Layout& layout) {
  std::int64_t in_long = 0;
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    std::int64_t length = 0;
    for (const Span& span : layout.sample(s)) length += span.length;
    if (length >= kLongSample) in_long += length;
  }
  return 2 * in_long > layout.num_tokens();
}

}  // namespace

PaperChoice paper_choice(const Layout& layout, const MaskRule& rule) {
  if (rule.window > 0)
    return {Strategy::alltoall, Placement::contiguous, "sliding window: sparse all-to-all of the last W keys"};
  if (median_dense_span(layout) >= kLongSpan && mostly_long_samples(layout))
    return {Strategy::ring, Placement::chunks, "long dense generation: chunked ring"};
  return {Strategy::alltoall, Placement::contiguous, "packed samples: sparse all-to-all over contiguous shards"};
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "mask/canonical.hpp"

#include <algorithm>

namespace marble {
namespace {

/// Causal, full and branch spans keep their order; noise and group spans follow, last one first.
void stack(std::span<CanonicalSpan> sample) {
  const auto stacked = std::stable_partition(sample.begin(), sample.end(),
                                             [](const CanonicalSpan& span) { return !is_stacked(span.mode); });
  std::reverse(stacked, sample.end());
}

}  // namespace

std::span<const CanonicalSpan> CanonicalOrder::sample(std::int64_t s) const {
  const auto begin = static_cast<std::size_t>(sample_begin[static_cast<std::size_t>(s)]);
  const auto end = static_cast<std::size_t>(sample_begin[static_cast<std::size_t>(s) + 1]);
  return std::span(spans).subspan(begin, end - begin);
}

CanonicalOrder canonical_order(const Layout& layout, Canonical canonical) {
  CanonicalOrder order;
  const std::vector<SpanTracks> tracks = span_tracks(layout);
  order.spans.reserve(tracks.size());
  for (const SpanTracks& span : tracks) {
    if (order.spans.empty() || order.spans.back().sample != span.sample)
      order.sample_begin.push_back(static_cast<std::int64_t>(order.spans.size()));
    order.spans.push_back({span, 0});
  }
  order.sample_begin.push_back(static_cast<std::int64_t>(order.spans.size()));
  for (std::int64_t s = 0; s < order.num_samples(); ++s) {
    const auto begin = static_cast<std::size_t>(order.sample_begin[static_cast<std::size_t>(s)]);
    if (canonical == Canonical::stack) stack(std::span(order.spans).subspan(begin, order.sample(s).size()));
  }
  for (CanonicalSpan& span : order.spans) {
    span.canonical = order.num_tokens;
    order.num_tokens += span.length;
  }
  return order;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Canonical orders: permutations of whole spans inside each sample.

#include "layout/span_tracks.hpp"

#include "marble/mask.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// A non-empty span and where the canonical order puts it: index `canonical` + i holds position `position` + i.
struct CanonicalSpan : SpanTracks {
  std::int64_t canonical = 0;

  [[nodiscard]] std::int64_t canonical_end() const { return canonical + length; }
  /// What the canonical index exceeds the position by.
  [[nodiscard]] std::int64_t shift() const { return canonical - position; }
};

struct CanonicalOrder {
  std::vector<CanonicalSpan> spans;        // ascending canonical index; a sample's spans are consecutive
  std::vector<std::int64_t> sample_begin;  // first span of each non-empty sample, and the number of spans
  std::int64_t num_tokens = 0;

  [[nodiscard]] std::int64_t num_samples() const { return static_cast<std::int64_t>(sample_begin.size()) - 1; }
  [[nodiscard]] std::span<const CanonicalSpan> sample(std::int64_t s) const;
};

[[nodiscard]] CanonicalOrder canonical_order(const Layout& layout, Canonical canonical);

/// True for the spans that the stack order puts behind the others.
[[nodiscard]] constexpr bool is_stacked(Mode mode) {
  return mode == Mode::noise || mode == Mode::group;
}

}  // namespace marble

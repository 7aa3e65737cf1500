// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tracks of a whole span at once: what the planner reads instead of per-token arrays.

#include "marble/layout.hpp"

#include <cstdint>
#include <vector>

namespace marble {

/// Tokens [position, position + length) of the pack; sample, segment and noise as in Tracks.
struct SpanTracks {
  std::int64_t position = 0;
  std::int64_t length = 0;
  std::int32_t sample = 0;
  std::int32_t segment = -1;
  std::int32_t noise = -1;
  Mode mode = Mode::causal;
};

/// The spans of at least one token, in pack order. One segment per full span, noise set or group set, one noise id per
/// noise set or branch span; empty spans take no number.
[[nodiscard]] std::vector<SpanTracks> span_tracks(const Layout& layout);

}  // namespace marble

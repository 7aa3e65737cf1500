// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mask rule (paper section 01), stated once for host and device, and exact counts of what it allows.

#include "marble/layout.hpp"

#include <cstdint>
#include <string_view>

#if defined(__CUDACC__)
#define MARBLE_HOST_DEVICE __host__ __device__
#else
#define MARBLE_HOST_DEVICE
#endif

namespace marble {

/// What a layer kind adds to the layout: a sliding window of `window` tokens over the causal rule (0: none), and
/// whether it also clamps bidirectional spans to |q - k| < window (`clamp`: Google's Gemma code does, Hugging Face's
/// does not; they agree on spans of at most `window` tokens).
struct MaskRule {
  std::int64_t window = 0;
  bool clamp = false;

  friend bool operator==(const MaskRule&, const MaskRule&) = default;
};

/// The four tracks of one token (paper section 01; see Tracks in layout.hpp).
struct TokenTracks {
  std::int32_t sample;
  std::int32_t segment;
  std::int32_t noise;
  std::int64_t position;
};

/// True when the query may attend the key. Every other statement of the mask in this library is tested against it.
MARBLE_HOST_DEVICE constexpr bool is_legal(const MaskRule& rule, const TokenTracks& query, const TokenTracks& key) {
  const std::int64_t distance = query.position - key.position;
  const bool in_window = rule.window == 0 || distance < rule.window;
  const bool causal = distance >= 0 && in_window;
  const bool in_clamp = !rule.clamp || (in_window && (rule.window == 0 || -distance < rule.window));
  const bool same_span = query.segment >= 0 && query.segment == key.segment && in_clamp;
  const bool keep_noise = key.noise < 0 || query.noise == key.noise;
  return query.sample == key.sample && keep_noise && (causal || same_span);
}

/// Throws InvalidArgument unless window >= 0, and clamp only with a window.
void validate(const MaskRule& rule);

/// Exact number of legal (query, key) pairs, from spans alone.
[[nodiscard]] std::int64_t count_legal_pairs(const Layout& layout, const MaskRule& rule = {});

/// The index space in which masks live. `sequence`: the given order. `stack`: per sample, causal, full and branch spans
/// in order, then noise and group spans, last one first; there every key without a window has one visible range.
enum class Canonical : std::uint8_t { sequence, stack };
[[nodiscard]] std::string_view to_string(Canonical canonical);

}  // namespace marble

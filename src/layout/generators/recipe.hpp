// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A recipe says how one generator draws a sample; `pack` turns an endless row of such samples into exactly N tokens.
//
// The fill rule:
//  1. Samples are taken in order of their index while they fit and while room stays for the modes still missing.
//  2. A sample that does not fit is redrawn smaller from the same stream: fewer items (frames, images, edits), then
//     smaller images; its text is trimmed to what is left, by at most all but 16 tokens of each text span.
//  3. Modes still missing when nothing fits any more come from the recipe's smallest samples.
//  4. What remains becomes one causal sample of fill, or, where that would exceed 2 % of the pack (small packs only),
//     lengthens the longest text span of the last sample that has one.

#include "layout/generators/random.hpp"

#include "marble/layout.hpp"

#include <functional>
#include <limits>
#include <vector>

namespace marble {

using Sample = std::vector<Span>;

/// How large a sample may be drawn. A draw lowers `items` to the number of items that it used.
struct SampleLimits {
  std::int64_t items = std::numeric_limits<std::int64_t>::max();
  std::int64_t detail_percent = 100;  // of each image's side or crops
};

struct Recipe {
  std::function<Sample(Random, SampleLimits&)> draw;
  std::vector<Sample> smallest;  // together they hold every mode of the generator
};

[[nodiscard]] std::int64_t num_tokens(const Sample& sample);

/// Appends text, joined with a causal span before it.
void append_text(Sample& sample, std::int64_t length);

/// Exactly `tokens` tokens, by the fill rule. Throws InvalidArgument when the smallest samples do not fit.
[[nodiscard]] Layout pack(const Recipe& recipe, std::int64_t tokens, std::uint64_t seed);

}  // namespace marble

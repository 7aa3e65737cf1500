// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gemma 3 27B: every image or crop is 256 soft tokens that see each other; all else is causal text.

#include "layout/generators/documents.hpp"
#include "layout/generators/recipe.hpp"

namespace marble {

inline constexpr std::int64_t kGemma3ImageTokens = 256;

/// Crops of pan-and-scan besides the whole image: 0, or 2 to 4 along the long side.
[[nodiscard]] std::int64_t gemma3_num_crops(ImageSize size);

/// A beginning-of-sequence token, then the document; `crops` turns pan-and-scan on.
[[nodiscard]] Sample gemma3_document(const Document& document, bool crops);

/// A chat turn about `num_frames` images without crops.
[[nodiscard]] Sample gemma3_frames(std::int64_t num_frames, std::int64_t question, std::int64_t answer);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Web documents of images and text with the published means of OBELICS: 2.5 images and 815 text tokens a document,
// medians 1 and 677.

#include "layout/generators/images.hpp"

#include <vector>

namespace marble {

/// Text and images alternate: texts[0] images[0] texts[1] ... images[n-1] texts[n]; a text may be empty.
struct Document {
  std::vector<std::int64_t> texts;  // tokens
  std::vector<ImageSize> images;
};

/// At most `max_images` images; the documents of one stream differ only in the images left out at the end.
[[nodiscard]] Document draw_document(Random& random, std::int64_t max_images);

}  // namespace marble

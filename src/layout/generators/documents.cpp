// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/documents.hpp"

#include <algorithm>
#include <array>

namespace marble {
namespace {

// n^-1.99 for n = 1..30: mean 2.502, median 1.
constexpr std::array<std::int64_t, 30> kImageCountWeights = {
    1000000, 251739, 112339, 63372, 40649, 28280, 20809, 15953, 12620, 10233, 8465, 7119, 6071, 5238, 4566,
    4016,    3560,   3177,   2853,  2576,  2338,  2131,  1951,  1792,  1652,  1528, 1418, 1319, 1230, 1150};
constexpr std::int64_t kEmptyGap = 150;  // thousandths: adjacent images, or an image first

/// Cuts `text` at uniform points, then hands some pieces to their successor.
std::vector<std::int64_t> cut(Random& random, std::int64_t text, std::int64_t pieces) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t i = 1; i < pieces; ++i) cuts.push_back(random.between(0, text));
  std::ranges::sort(cuts);
  cuts.push_back(text);
  std::vector<std::int64_t> lengths;
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    const bool last = lengths.size() + 1 == cuts.size();
    const bool empty = !last && random.chance(kEmptyGap);
    lengths.push_back(empty ? 0 : end - begin);
    if (!empty) begin = end;
  }
  return lengths;
}

}  // namespace

Document draw_document(Random& random, std::int64_t max_images) {
  const auto num_images = static_cast<std::int64_t>(random.pick(kImageCountWeights)) + 1;
  const std::int64_t text = random.lognormal(677, 610, 13, 3000);
  Document document{.texts = cut(random, text, num_images + 1), .images = {}};
  for (std::int64_t i = 0; i < num_images; ++i) document.images.push_back(draw_web_image(random));
  while (static_cast<std::int64_t>(document.images.size()) > max_images) {
    const std::int64_t tail = document.texts.back();
    document.images.pop_back();
    document.texts.pop_back();
    document.texts.back() += tail;
  }
  return document;
}

}  // namespace marble

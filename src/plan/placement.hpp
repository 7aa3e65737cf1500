// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Placements: which ring rank stores each canonical piece. A placement assigns whole blocks of the canonical order (or
// stripes that divide blocks), so that no rank holds more than ceil(blocks / R) blocks whatever the layout.

#include "marble/plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

struct PlacementInput {
  std::int64_t num_tokens = 0;
  std::int32_t ring = 1;
  std::int64_t block = 128;
  std::int64_t stripe = 128;
  std::span<const std::int64_t> block_work;  // per canonical block, summed over layers (ptrr)
};

/// Pieces in ascending canonical index; adjacent pieces of one rank are joined.
[[nodiscard]] std::vector<Piece> place(Placement placement, const PlacementInput& input);

/// Rows that hold any ring rank's tokens under every placement: whole blocks.
[[nodiscard]] std::int64_t ring_rows(std::int64_t num_tokens, std::int32_t ring, std::int64_t block);

}  // namespace marble

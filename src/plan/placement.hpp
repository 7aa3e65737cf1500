// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Placements: which ring rank stores each canonical piece. No rank holds more than ceil(blocks / R) blocks' rows,
// whatever the layout and the placement.

#include "mask/visibility.hpp"

#include "marble/plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// A layer kind's mask, and how many layers have it.
struct LayerVisibility {
  Visibility visibility;
  std::int64_t count = 1;
};

struct PlacementInput {
  const CanonicalOrder& order;
  std::span<const LayerVisibility> layers;
  std::int32_t ring = 1;
  std::int64_t block = 128;
  std::int64_t stripe = 128;         // striped
  std::int64_t range_cost = 0;       // chunks: legal pairs that one range costs in one step (the paper's tau)
  std::int64_t partial_cost = 1000;  // of a partial block pair, in thousandths of a full one
  int threads = 1;
};

/// Pieces in ascending canonical index; adjacent pieces of one rank are joined.
[[nodiscard]] std::vector<Piece> place(Placement placement, const PlacementInput& input);

/// Rows that hold any ring rank's tokens under every placement: whole blocks.
[[nodiscard]] std::int64_t ring_rows(std::int64_t num_tokens, std::int32_t ring, std::int64_t block);

/// A part of the canonical order on its way to a rank.
struct OwnedRange {
  std::int64_t canonical = 0;
  std::int64_t length = 0;
  std::int32_t ring_rank = 0;
};

/// `ranges` ascend and cover the order; empty ones are dropped, adjacent ones of one rank joined, and rows numbered.
[[nodiscard]] std::vector<Piece> to_pieces(std::span<const OwnedRange> ranges, std::int32_t ring);

/// Legal pairs of each canonical block's queries, and of its keys, summed over the layers.
[[nodiscard]] std::vector<std::int64_t> block_work(const PlacementInput& input);
[[nodiscard]] std::vector<std::int64_t> key_block_work(const PlacementInput& input);

/// Contiguous chunks, 1 to 64 a rank, that minimise the sum of each ring step's slowest rank (paper section 03, cost
/// C).
[[nodiscard]] std::vector<OwnedRange> place_chunks(const PlacementInput& input);

/// Whole samples dealt so that tokens and work are equal; only heavy samples are split (system design, section 4.8).
[[nodiscard]] std::vector<OwnedRange> place_dealt(const PlacementInput& input);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank plan made ready for the CPU backend: what partial blocks are tested against, and in which turn each key block
// adds into each query block's dQ.

#include "backend/key_rows.hpp"

#include "marble/backend.hpp"

#include <vector>

namespace marble::cpu {

/// One work's expansion. Pad keys have an empty interval and are never asked for.
struct BoundWork {
  std::vector<RowInterval> intervals;    // per key row, when the plan has visible ranges
  std::vector<TokenTracks> key_tracks;   // per key row, when it has tracks
  std::vector<std::int32_t> turns;       // per backward item, run and query block, in that order
  std::vector<std::int64_t> turn_begin;  // of each backward item
  std::int64_t forward_tiles = 0;
  std::int64_t backward_tiles = 0;
};

class CpuBoundPlan final : public BoundPlan {
 public:
  /// Copies the plan. Throws InvalidArgument when rows pass 2^31 or a key segment has no rule.
  explicit CpuBoundPlan(const RankPlan& plan);

  [[nodiscard]] const RankPlan& plan() const { return plan_; }
  [[nodiscard]] const BoundWork& work(std::int32_t index) const { return works_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const std::vector<TokenTracks>& query_tracks() const { return query_tracks_; }
  /// Query heads of each key head, in order.
  [[nodiscard]] const std::vector<std::vector<std::int32_t>>& heads_of() const { return heads_of_; }

 private:
  RankPlan plan_;
  std::vector<TokenTracks> query_tracks_;
  std::vector<BoundWork> works_;
  std::vector<std::vector<std::int32_t>> heads_of_;
};

[[nodiscard]] constexpr std::int64_t num_blocks(std::int64_t rows, std::int32_t block) {
  return (rows + block - 1) / block;
}

}  // namespace marble::cpu

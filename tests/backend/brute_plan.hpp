// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank plan for one rank, made pair by pair from the mask rule: no planner, no block summaries. What a backend is
// tested with.

#include "plan/rank_plan_parts.hpp"

#include "marble/mask.hpp"

#include <cstdint>
#include <vector>

namespace marble {

/// Among the keys of a work: a pad, which only pads follow within its block.
inline constexpr std::int64_t kPadKey = -1;

/// `tokens` lists the whole pack in canonical order: entry c holds the tracks of canonical index c.
struct BruteSpec {
  std::vector<TokenTracks> tokens;
  MaskRule rule;
  bool use_tracks = false;                       // four-track test instead of visible ranges
  std::vector<std::int64_t> queries;             // canonical indices that the rank holds, ascending
  std::vector<std::vector<std::int64_t>> works;  // canonical indices of each work's keys, ascending; pads
  std::int32_t block = 128;
  std::int64_t pad_rows = 0;  // after the last query, and after the last key of each work
  std::int32_t head_dim = 1;
  std::int32_t kv_heads = 1;
  std::vector<std::int32_t> head_map = {0};
};

/// True when every key's visible queries are one canonical interval, so that visible ranges can say the mask.
[[nodiscard]] bool has_visible_ranges(const BruteSpec& spec);

/// Items carry runs in ascending block order. A query block that no key reaches is finished by the first work.
[[nodiscard]] RankPlan make_brute_plan(const BruteSpec& spec);

}  // namespace marble

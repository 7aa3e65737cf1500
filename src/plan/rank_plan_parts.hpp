// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The sections of a rank plan while it is being made; `assemble` lays them into the flat buffer, `parts_of` takes them
// out again.

#include "marble/rank_plan.hpp"

#include <vector>

namespace marble {

struct RankPlanParts {
  RankPlanHeader header;  // magic, version, bytes and checksum are filled in by `assemble`
  std::vector<BufferDesc> buffers;
  std::vector<std::int32_t> head_map;
  std::vector<Segment> query_segments;
  std::vector<Segment> segments;
  std::vector<VisibleRule> rules;
  std::vector<Step> forward_steps;
  std::vector<Step> backward_steps;
  std::vector<Work> works;
  std::vector<Item> items;
  std::vector<Run> runs;
  std::vector<std::int32_t> key_valid;
  std::vector<Exchange> exchanges;
  std::vector<Transfer> transfers;
  std::vector<Finish> finishes;
};

[[nodiscard]] RankPlan assemble(const RankPlanParts& parts);
[[nodiscard]] RankPlanParts parts_of(const RankPlan& plan);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/bound_plan.hpp"

#include "marble/error.hpp"

#include <limits>

namespace marble::cpu {
namespace {

template <typename T>
std::span<const T> part(std::span<const T> section, SectionRange range) {
  return section.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

std::vector<TokenTracks> expand_tracks(std::span<const Segment> segments, std::int64_t rows) {
  std::vector<TokenTracks> tracks(static_cast<std::size_t>(rows), TokenTracks{-1, -1, -1, 0});
  for (const Segment& segment : segments)
    for (std::int64_t offset = 0; offset < segment.length; ++offset)
      tracks[static_cast<std::size_t>(segment.row + offset)] = tracks_of(segment, offset);
  return tracks;
}

std::vector<RowInterval> expand_intervals(const RankPlan& plan, const Work& work) {
  const std::span<const Segment> queries = plan.query_segments();
  std::vector<RowInterval> intervals(static_cast<std::size_t>(work.key_rows));
  for (const Segment& segment : part(plan.segments(), work.key_segments)) {
    require(segment.rule >= 0, "rank plan key segment at row {} has no visible rule", segment.row);
    const VisibleRule& rule = plan.rules()[static_cast<std::size_t>(segment.rule)];
    for (std::int64_t offset = 0; offset < segment.length; ++offset)
      intervals[static_cast<std::size_t>(segment.row + offset)] =
          visible_rows(segment, offset, rule, queries.data(), static_cast<std::int64_t>(queries.size()));
  }
  return intervals;
}

/// Blocks in the runs of `items`.
std::int64_t count_tiles(const RankPlan& plan, const SectionRange& items) {
  std::int64_t tiles = 0;
  for (const Item& item : part(plan.items(), items))
    for (const Run& run : part(plan.runs(), {item.run_begin, item.run_begin + item.run_count}))
      tiles += run.end - run.begin;
  return tiles;
}

void number_turns(const RankPlan& plan, const Work& work, BoundWork& bound) {
  const RankPlanHeader& header = plan.header();
  std::vector<std::int32_t> next(static_cast<std::size_t>(num_blocks(header.query_rows, header.block)));
  for (const Item& item : part(plan.items(), work.backward_items)) {
    bound.turn_begin.push_back(static_cast<std::int64_t>(bound.turns.size()));
    for (const Run& run : part(plan.runs(), {item.run_begin, item.run_begin + item.run_count}))
      for (std::int32_t block = run.begin; block < run.end; ++block)
        bound.turns.push_back(next[static_cast<std::size_t>(block)]++);
  }
}

}  // namespace

CpuBoundPlan::CpuBoundPlan(const RankPlan& plan) : plan_(plan) {
  const RankPlanHeader& header = plan_.header();
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();
  require(header.query_rows <= kMaxRows, "rank plan has {} query rows, more than {}", header.query_rows, kMaxRows);
  if (header.uses_tracks != 0) query_tracks_ = expand_tracks(plan_.query_segments(), header.query_rows);
  for (const Work& work : plan_.works()) {
    BoundWork bound;
    if (header.uses_tracks != 0)
      bound.key_tracks = expand_tracks(part(plan_.segments(), work.key_segments), work.key_rows);
    else
      bound.intervals = expand_intervals(plan_, work);
    number_turns(plan_, work, bound);
    bound.forward_tiles = count_tiles(plan_, work.forward_items);
    bound.backward_tiles = count_tiles(plan_, work.backward_items);
    works_.push_back(std::move(bound));
  }
  heads_of_.resize(static_cast<std::size_t>(header.local_kv_heads));
  for (std::int32_t head = 0; head < header.local_heads; ++head)
    heads_of_[static_cast<std::size_t>(plan_.head_map()[static_cast<std::size_t>(head)])].push_back(head);
}

}  // namespace marble::cpu

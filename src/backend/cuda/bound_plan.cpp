// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/bound_plan.hpp"

#include "backend/cuda/backward_order.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/planned_order.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace marble::cuda {
namespace {

template <typename T>
std::span<const T> slice(std::span<const T> values, const SectionRange& range) {
  return values.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

/// Where a work's keys lie. Keys of several ranks follow one another in whole blocks, so that pads may lie between
/// them.
struct KeyExtent {
  std::int64_t valid_rows = 0;  // up to the last valid one
  std::vector<RowGap> gaps;
  std::vector<std::int32_t> padded_blocks;  // ascending
};

KeyExtent key_extent(const RankPlan& plan, const Work& work) {
  KeyExtent extent;
  std::int64_t block = 0;
  for (const std::int32_t valid : slice(plan.key_valid(), work.key_valid)) {
    require(valid >= 0 && valid <= kBlock, "rank plan states {} valid keys in a block of {}", valid, kBlock);
    if (valid > 0) {
      if (extent.valid_rows < block * kBlock) extent.gaps.push_back({extent.valid_rows, block * kBlock});
      extent.valid_rows = block * kBlock + valid;
    }
    if (valid < kBlock) extent.padded_blocks.push_back(static_cast<std::int32_t>(block));
    ++block;
  }
  return extent;
}

std::int64_t sum_of_tiles(const RankPlan& plan, const SectionRange& range) {
  const auto items = slice(plan.items(), range);
  return std::accumulate(items.begin(), items.end(), std::int64_t{0},
                         [](std::int64_t sum, const Item& item) { return sum + item.tiles; });
}

QueryPath path_of(const RankPlan& plan) {
  return query_path(plan.header().window, plan.query_segments());
}

std::vector<Item> backward_items(const RankPlan& plan, const Work& work) {
  return in_order_of_paths(slice(plan.items(), work.backward_items), plan.runs(), path_of(plan));
}

int longest_item(const RankPlan& plan, const SectionRange& range) {
  int longest = 0;
  for (const Item& item : slice(plan.items(), range)) longest = std::max(longest, item.tiles);
  return longest;
}

/// Positions of items, longest first.
std::vector<std::int32_t> by_length(std::span<const Item> items) {
  std::vector<std::int32_t> positions(items.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::ranges::stable_sort(positions, std::greater{},
                           [&](std::int32_t i) { return items[static_cast<std::size_t>(i)].tiles; });
  return positions;
}

/// The lists that kernels walk: backward items in the order of their units. A key block with pads is partial to them,
/// also where every valid pair is legal: pads read as zeros, whose scores are as good as any.
struct WalkedLists {
  std::vector<Item> items;
  std::vector<Run> runs;
};

/// A run of key blocks, cut where blocks with pads begin and end.
void append_key_run(const Run& run, std::span<const std::int32_t> padded_blocks, std::vector<Run>& runs) {
  std::int32_t begin = run.begin;
  const auto append = [&](std::int32_t end, BlockClass block_class) {
    if (begin < end) runs.push_back({begin, end, block_class});
    begin = end;
  };
  if (run.block_class == BlockClass::full) {
    auto padded = std::ranges::lower_bound(padded_blocks, run.begin);
    for (; padded != padded_blocks.end() && *padded < run.end; ++padded) {
      append(*padded, BlockClass::full);
      append(*padded + 1, BlockClass::partial);
    }
  }
  append(run.end, run.block_class);
}

WalkedLists walked_lists(const RankPlan& plan) {
  WalkedLists lists;
  lists.items.assign(plan.items().begin(), plan.items().end());
  const auto append = [&](const SectionRange& range, auto&& append_run) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      Item& item = lists.items[static_cast<std::size_t>(i)];
      const SectionRange runs{item.run_begin, item.run_begin + item.run_count};
      item.run_begin = static_cast<std::int64_t>(lists.runs.size());
      for (const Run& run : slice(plan.runs(), runs)) append_run(item, run);
      item.run_count = static_cast<std::int32_t>(static_cast<std::int64_t>(lists.runs.size()) - item.run_begin);
    }
  };
  for (const Work& work : plan.works()) {
    std::ranges::copy(backward_items(plan, work), lists.items.begin() + work.backward_items.begin);
    const std::vector<std::int32_t> padded_blocks = key_extent(plan, work).padded_blocks;
    append(work.forward_items, [&](const Item&, const Run& run) { append_key_run(run, padded_blocks, lists.runs); });
    append(work.backward_items, [&](const Item& item, const Run& run) {
      const bool has_pads = std::ranges::binary_search(padded_blocks, item.block);
      lists.runs.push_back({run.begin, run.end, has_pads ? BlockClass::partial : run.block_class});
    });
  }
  return lists;
}

/// Where each key head's query heads begin, then the query heads by key head.
std::vector<std::int32_t> groups_of(const RankPlan& plan) {
  std::vector<std::int32_t> begins, heads;
  for (std::int32_t key_head = 0; key_head < plan.header().local_kv_heads; ++key_head) {
    begins.push_back(static_cast<std::int32_t>(heads.size()));
    for (std::int32_t head = 0; head < plan.header().local_heads; ++head)
      if (plan.head_map()[static_cast<std::size_t>(head)] == key_head) heads.push_back(head);
  }
  begins.push_back(static_cast<std::int32_t>(heads.size()));
  begins.insert(begins.end(), heads.begin(), heads.end());
  return begins;
}

void check_positions(std::span<const Segment> segments) {
  for (const Segment& segment : segments)
    require(segment.position + segment.length <= std::numeric_limits<std::int32_t>::max(),
            "position {} is not supported by the cuda backend's four-track test; the limit is 2^31 - 1",
            segment.position + segment.length);
}

}  // namespace

int forward_splits(const RankPlan& plan, const Work& work, int num_multiprocessors) {
  constexpr int kFewestTiles = 8;  // a split shorter than this costs more in its merge than it saves
  const std::int64_t units = std::int64_t{plan.header().local_heads} * work.forward_items.size();
  if (units == 0 || units >= num_multiprocessors) return 1;
  const auto wanted = static_cast<int>(num_multiprocessors / units);
  return std::clamp(std::min(wanted, longest_item(plan, work.forward_items) / kFewestTiles), 1, kMaxSplits);
}

const BoundRanks& CudaBoundPlan::backward_ranks(std::int32_t index) const {
  const auto [place, is_new] = backward_ranks_.try_emplace(index);
  if (is_new) {
    const Work& work = plan_.works()[static_cast<std::size_t>(index)];
    const PlannedRanks planned =
        planned_ranks(backward_items(plan_, work), plan_.runs(), num_blocks(plan_.header().query_rows));
    place->second = {uploads_.upload(std::span<const std::int32_t>(planned.ranks)),
                     uploads_.upload(std::span<const std::int64_t>(planned.item_begin))};
  }
  return place->second;
}

CudaBoundPlan::CudaBoundPlan(const RankPlan& plan, int num_multiprocessors, Uploads& uploads)
    : uploads_(uploads), plan_(plan), backward_path_(path_of(plan)) {
  const RankPlanHeader& header = plan_.header();
  require(header.query_rows <= std::numeric_limits<std::int32_t>::max(),
          "{} query rows are not supported by the cuda backend; the limit is 2^31 - 1", header.query_rows);
  const WalkedLists lists = walked_lists(plan_);
  items_ = uploads_.upload(std::span<const Item>(lists.items));
  runs_ = uploads_.upload(std::span<const Run>(lists.runs));
  head_map_ = uploads_.upload(plan_.head_map());
  const std::vector<std::int32_t> groups = groups_of(plan_);
  groups_ = uploads_.upload(std::span<const std::int32_t>(groups));
  for (const Work& work : plan_.works()) {
    BoundWork& bound = works_.emplace_back();
    require(work.key_rows <= std::numeric_limits<std::int32_t>::max(),
            "{} key rows are not supported by the cuda backend; the limit is 2^31 - 1", work.key_rows);
    bound.visibility.rule = {header.window, header.clamp != 0};
    const KeyExtent extent = key_extent(plan_, work);
    bound.valid_key_rows = extent.valid_rows;
    bound.num_gaps = static_cast<std::int32_t>(extent.gaps.size());
    bound.gaps = expansions_.emplace_back(uploads_.upload(std::span<const RowGap>(extent.gaps))).as<RowGap>();
    bound.forward_tiles = sum_of_tiles(plan_, work.forward_items);
    bound.backward_tiles = sum_of_tiles(plan_, work.backward_items);
    bound.longest_backward = longest_item(plan_, work.backward_items);
    const std::vector<std::int32_t> positions = by_length(backward_items(plan_, work));
    bound.by_length =
        expansions_.emplace_back(uploads_.upload(std::span<const std::int32_t>(positions))).as<std::int32_t>();
    bound.num_splits = forward_splits(plan_, work, num_multiprocessors);
  }
  expand();
}

void CudaBoundPlan::expand() {
  const cudaStream_t stream = uploads_.stream();
  const DeviceBuffer segments = uploads_.upload(plan_.segments());
  const DeviceBuffer query_segments = uploads_.upload(plan_.query_segments());
  const DeviceBuffer rules = uploads_.upload(plan_.rules());
  const auto num_query_segments = static_cast<std::int64_t>(plan_.query_segments().size());
  const bool uses_tracks = plan_.header().uses_tracks != 0;
  if (uses_tracks) {
    check_positions(plan_.query_segments());
    check_positions(plan_.segments());
    const std::int64_t rows = num_blocks(plan_.header().query_rows) * kBlock;
    query_tracks_ = uploads_.allocate(rows * std::int64_t{sizeof(RowTracks)});
    expand_tracks(query_segments.as<Segment>(), num_query_segments, rows, query_tracks_.as<RowTracks>(), stream);
  }
  for (std::size_t i = 0; i < works_.size(); ++i) {
    const Work& work = plan_.works()[i];
    VisibilityArrays& visibility = works_[i].visibility;
    const Segment* key_segments = segments.as<Segment>() + work.key_segments.begin;
    const std::int64_t rows = num_blocks(work.key_rows) * kBlock;
    if (uses_tracks) {
      auto* tracks =
          expansions_.emplace_back(uploads_.allocate(rows * std::int64_t{sizeof(RowTracks)})).as<RowTracks>();
      expand_tracks(key_segments, work.key_segments.size(), rows, tracks, stream);
      visibility.key_tracks = tracks;
      visibility.query_tracks = query_tracks_.as<RowTracks>();
    } else {
      auto* intervals =
          expansions_.emplace_back(uploads_.allocate(rows * std::int64_t{sizeof(RowInterval)})).as<RowInterval>();
      expand_intervals(key_segments, work.key_segments.size(), rules.as<VisibleRule>(), query_segments.as<Segment>(),
                       num_query_segments, rows, intervals, stream);
      visibility.key_intervals = intervals;
    }
  }
  // The uploaded segments are given back here, in the order of the stream.
}

}  // namespace marble::cuda

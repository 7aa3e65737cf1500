// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Works of a rank plan: which block pairs are attended when, and the keys' segments.

#include "plan/local_split.hpp"
#include "plan/rank_plan_maker.hpp"

#include <algorithm>
#include <utility>

namespace marble {
namespace {

std::int64_t blocks_of(std::int64_t rows, std::int64_t block) {
  return (rows + block - 1) / block;
}

/// True when `segment` continues `last` in storage and in its span.
bool continues(const Segment& last, const Segment& segment) {
  return last.row + last.length == segment.row && last.canonical + last.length == segment.canonical &&
         last.position + last.length == segment.position && last.sample == segment.sample &&
         last.segment == segment.segment && last.noise == segment.noise && last.rule == segment.rule;
}

void append_runs(const KeyMajorRuns& source, KeyMajorRuns& target) {
  const std::int64_t base = target.begin.back();
  target.runs.insert(target.runs.end(), source.runs.begin(), source.runs.end());
  for (std::size_t b = 1; b < source.begin.size(); ++b) target.begin.push_back(base + source.begin[b]);
}

}  // namespace

void RankPlanMaker::append_segment(const Segment& segment, std::int64_t first) {
  const bool any = static_cast<std::int64_t>(parts_.segments.size()) > first;
  if (any && continues(parts_.segments.back(), segment))
    parts_.segments.back().length += segment.length;
  else
    parts_.segments.push_back(segment);
}

void RankPlanMaker::add_slot_blocks(std::int32_t key_rank, const FetchList& list, Work& work, KeyMajorRuns& runs) {
  const KeyBlocks& keys = placed_.key_blocks[static_cast<std::size_t>(key_rank)];
  for (const std::int32_t b : list.blocks) {
    const KeyBlock& key_block = keys.blocks[static_cast<std::size_t>(b)];
    const std::int64_t shift = work.key_rows - std::int64_t{b} * plan_.block;  // owner's row to slot row
    for (const Fragment& fragment : keys.of(key_block))
      append_segment(make_segment(fragment, fragment.row + shift), work.key_segments.begin);
    parts_.key_valid.push_back(key_block.rows);
    work.key_rows += plan_.block;
  }
  append_runs(list.runs, runs);
}

void RankPlanMaker::add_work(std::int32_t slice) {
  const Sides& s = sides_;
  Work work{.q = s.q,
            .k = s.k,
            .v = s.v,
            .out = s.out,
            .lse = s.lse,
            .dout = s.dout,
            .delta = s.delta,
            .dk = s.dk_sum,
            .dv = s.dv_sum};
  if (slice > 0) {
    const Slot& slot = slots_[static_cast<std::size_t>(slice) - 1];
    work.k = slot.k, work.v = slot.v, work.dk = slot.dk, work.dv = slot.dv;
    work.clear_gradients = 1;
  }
  work.key_segments.begin = static_cast<std::int64_t>(parts_.segments.size());
  work.key_valid.begin = static_cast<std::int64_t>(parts_.key_valid.size());
  KeyMajorRuns runs;
  for (const std::int32_t key_rank : peers_.sources(ring_rank_, slice))
    add_slot_blocks(key_rank, fetches_[static_cast<std::size_t>(key_rank)], work, runs);
  work.key_segments.end = static_cast<std::int64_t>(parts_.segments.size());
  work.key_valid.end = static_cast<std::int64_t>(parts_.key_valid.size());

  std::vector<Item> backward = key_major_items(runs, parts_.runs);
  sort_by_tiles(backward);
  if (slice == 0 && splits_own_keys(plan_, layer_)) {
    auto parts = split_items(backward, local_split(plan_, layer_, ring_rank_));
    backward = std::move(parts.first);
    own_last_items_ = std::move(parts.second);
  }
  work.backward_items = add_items(backward);
  forward_items_.push_back(transpose(runs, blocks_of(parts_.header.query_rows, plan_.block), parts_.runs));
  for (const Item& item : forward_items_.back()) work.tiles += item.tiles;
  parts_.works.push_back(work);
}

SectionRange RankPlanMaker::add_items(const std::vector<Item>& items) {
  const auto begin = static_cast<std::int64_t>(parts_.items.size());
  parts_.items.insert(parts_.items.end(), items.begin(), items.end());
  return {begin, static_cast<std::int64_t>(parts_.items.size())};
}

/// The rank's own keys again, for the backward items that wait for the last slice.
void RankPlanMaker::add_own_last_work() {
  if (own_last_items_.empty()) return;
  Work work = parts_.works.front();
  work.forward_items = {};
  work.tiles = 0;
  work.backward_items = add_items(own_last_items_);
  parts_.works.push_back(work);
}

/// A query block's first and last item start and end its state. One without any tile is written once, by an item of the
/// first work without runs.
void RankPlanMaker::add_forward_items() {
  const std::int64_t blocks = blocks_of(parts_.header.valid_query_rows, plan_.block);
  std::vector<Item*> last(static_cast<std::size_t>(blocks), nullptr);
  for (std::vector<Item>& items : forward_items_)
    for (Item& item : items) {
      Item*& before = last[static_cast<std::size_t>(item.block)];
      if (before == nullptr) item.flags |= Item::kFirst;
      before = &item;
    }
  std::vector<Item> idle;
  for (std::int64_t q = 0; q < blocks; ++q) {
    Item* item = last[static_cast<std::size_t>(q)];
    if (item != nullptr)
      item->flags |= Item::kLast;
    else
      idle.push_back({.block = static_cast<std::int32_t>(q), .flags = Item::kFirst | Item::kLast});
  }
  forward_items_.front().insert(forward_items_.front().end(), idle.begin(), idle.end());
  for (std::size_t w = 0; w < forward_items_.size(); ++w) {
    sort_by_tiles(forward_items_[w]);
    parts_.works[w].forward_items = add_items(forward_items_[w]);
  }
}

void RankPlanMaker::add_works() {
  for (std::int32_t slice = 0; slice <= num_slices(); ++slice) add_work(slice);
  add_forward_items();
  add_own_last_work();
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The query tiles of one unit of backward work. Every role of the kernel walks them by itself.

#include "backend/cuda/params.hpp"

namespace marble::cuda {

/// A (key head, item, tile of the item's keys, split) of a launch.
struct BackwardUnit {
  int key_head;
  int item;
  int key_tile;
  int split;
};

/// Units come key head by key head. With a planned order of sums, heads go together instead, some at a time, item by
/// item and longest first: few of the units at work at one time then meet the same query tiles, and those are of like
/// length, so that they wait little. Without one, all heads but the last take items in the order of their keys:
/// neighbours meet the same queries while those are in the cache. The last head takes the longest items first, for all
/// CTAs to end together.
MARBLE_HOST_DEVICE inline BackwardUnit backward_unit_at(const BackwardParams& params, int key_tiles, int index) {
  const int units_per_head = params.num_items * key_tiles * params.num_splits;
  const int first_head = index / (params.heads_together * units_per_head) * params.heads_together;
  const int rest = params.num_kv_heads - first_head;
  const int heads = rest < params.heads_together ? rest : params.heads_together;
  index -= first_head * units_per_head;
  const int split = index % params.num_splits;
  const int tile = index / params.num_splits;
  const int turn = tile / key_tiles;
  BackwardUnit unit = {first_head + turn % heads, turn / heads, tile % key_tiles, split};
  if (params.key_order != nullptr && unit.key_head < params.num_kv_heads - 1) unit.item = params.key_order[unit.item];
  return unit;
}

/// Keeps values in memory, not in registers, across this point.
MARBLE_HOST_DEVICE inline void forget_registers() {
  asm volatile("" ::: "memory");
}

/// The query blocks of an item once for each query head of the key head; with splits, this split's even share. Blocks
/// descend: most keys are seen by what follows them, so units of neighbouring keys that start together meet a block one
/// after the other, in the order of a planned sum. Lives in shared memory: the thread that walks has few registers.
class GroupWalk {
 public:
  MARBLE_HOST_DEVICE void start(const BackwardParams& params, const BackwardUnit& unit) {
    item_ = params.items[unit.item];
    forget_registers();
    head_ = params.group_begin[unit.key_head];
    const int all = item_.tiles * (params.group_begin[unit.key_head + 1] - head_);
    const int share = (all + params.num_splits - 1) / params.num_splits;
    const int first = unit.split * share < all ? unit.split * share : all;
    remaining_ = share < all - first ? share : all - first;
    run_ = item_.run_count;
    forget_registers();
    rank_ = params.order.ranks != nullptr ? params.order.item_begin[unit.item] + item_.tiles : 0;
    open_ = {};
    if (remaining_ > 0) skip(params, first);
  }

  struct Block {
    int head;
    int index;
    int rank;  // in the planned order, if there is one
    bool is_partial;
  };

  MARBLE_HOST_DEVICE Block next(const BackwardParams& params) {
    --remaining_;
    if (open_.begin == open_.end) open_run(params);
    return {params.group_heads[head_], --open_.end, params.order.ranks != nullptr ? params.order.ranks[--rank_] : 0,
            open_.block_class == BlockClass::partial};
  }

  MARBLE_HOST_DEVICE int remaining() const { return remaining_; }
  MARBLE_HOST_DEVICE int key_block() const { return item_.block; }

 private:
  MARBLE_HOST_DEVICE void open_run(const BackwardParams& params) {
    forget_registers();
    if (run_ == 0) {
      run_ = item_.run_count;
      rank_ += item_.tiles;
      ++head_;
    }
    open_ = params.runs[item_.run_begin + --run_];
    forget_registers();
  }

  MARBLE_HOST_DEVICE void skip(const BackwardParams& params, int count) {
    head_ += count / item_.tiles;
    count %= item_.tiles;
    rank_ -= count;
    open_run(params);
    while (count >= open_.end - open_.begin) {
      count -= open_.end - open_.begin;
      open_run(params);
    }
    open_.end -= count;
  }

  Item item_;
  int head_;           // into group_heads
  std::int64_t rank_;  // into the order's ranks: those of the blocks before, down to the item's first
  int run_;            // of the item; those before it are still to come
  Run open_;           // what is left of it
  int remaining_;
};

}  // namespace marble::cuda

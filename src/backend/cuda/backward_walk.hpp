// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The query tiles of one unit of backward work. Every role of the kernel walks them by itself.

#include "backend/cuda/params.hpp"

namespace marble::cuda {

/// A (key head, item, tile of the item's keys, split of its query heads, split of its query blocks) of a launch.
struct BackwardUnit {
  int key_head;
  int item;
  int key_tile;
  int head_split;
  int block_split;
};

/// Keeps values in memory, not in registers, across this point.
MARBLE_HOST_DEVICE inline void forget_registers() {
  asm volatile("" ::: "memory");
}

/// Sets the order of a launch's units. One split comes after the other, all items of one before the next: what is at
/// work at one time sweeps few query blocks of few heads, which stay in the cache for all. But in a planned order
/// splits of blocks follow each other, for they are not the same blocks in every item.
inline void order_units(BackwardParams& params, int key_tiles) {
  params.inner_splits = params.order.ranks != nullptr ? params.block_splits : 1;
  params.units_per_split = params.num_items * key_tiles * params.inner_splits;
  params.units_per_head = params.num_items * key_tiles * params.head_splits * params.block_splits;
  params.num_units = params.units_per_head * params.num_kv_heads;
}

/// Units alternate between `heads_together` key heads, item by item. Without a planned order the last key head takes
/// the longest items first, for all CTAs to end together.
MARBLE_HOST_DEVICE inline BackwardUnit backward_unit_at(const BackwardParams& params, int key_tiles, int index) {
  const int first_head = index / (params.heads_together * params.units_per_head) * params.heads_together;
  const int rest = params.num_kv_heads - first_head;
  const int heads = rest < params.heads_together ? rest : params.heads_together;
  index -= first_head * params.units_per_head;
  const int outer = index / (heads * params.units_per_split);
  index %= heads * params.units_per_split;
  const int tile = index / params.inner_splits;
  const int turn = tile / key_tiles;
  BackwardUnit unit = {first_head + turn % heads, turn / heads, tile % key_tiles, outer % params.head_splits,
                       outer / params.head_splits + index % params.inner_splits};
  if (params.by_length != nullptr && unit.key_head == params.num_kv_heads - 1) unit.item = params.by_length[unit.item];
  return unit;
}

/// Where a tile of keys stands among the launch's; its splits share it.
MARBLE_HOST_DEVICE inline int key_tile_of(const BackwardParams& params, int key_tiles, const BackwardUnit& unit) {
  return (unit.key_head * params.num_items + unit.item) * key_tiles + unit.key_tile;
}

MARBLE_HOST_DEVICE inline bool has_splits(const BackwardParams& params) {
  return params.head_splits * params.block_splits > 1;
}

/// The query blocks of an item once for each query head of the key head, on the launch's path. Splits that get nothing
/// come last among those of heads and of blocks. Lives in shared memory: the thread that walks has few registers.
class GroupWalk {
 public:
  MARBLE_HOST_DEVICE void start(const BackwardParams& params, const BackwardUnit& unit) {
    item_ = params.items[unit.item];
    forget_registers();
    const int group = params.group_begin[unit.key_head];
    const int all = params.group_begin[unit.key_head + 1] - group;
    set_share(unit.head_split, params.head_splits, all, first_head_, end_head_);
    first_head_ += group;
    end_head_ += group;
    const int share = set_share(unit.block_split, params.block_splits, item_.tiles, first_block_, end_block_);
    turn_ = unit.head_split * ((item_.tiles + share - 1) / share) + unit.block_split;
    forget_registers();
    remaining_ = (end_head_ - first_head_) * (end_block_ - first_block_);
    head_ = params.path.heads_inside ? end_head_ : first_head_;
    ranks_ = params.order.ranks != nullptr ? params.order.item_begin[unit.item] : 0;
    forget_registers();
    enter(params);
  }

  struct Block {
    int head;
    int index;
    int rank;  // in the planned order, if there is one
    bool is_partial;
    bool is_first_head, is_last_head;  // of those that meet the block in a row: one mask serves them
  };

  MARBLE_HOST_DEVICE Block next(const BackwardParams& params) {
    --remaining_;
    if (params.path.heads_inside) {
      if (head_ == end_head_) {
        head_ = first_head_;
        step(params);
      }
      return at(params, head_++);
    }
    if (left_ == 0) {
      ++head_;
      enter(params);
    }
    --left_;
    step(params);
    return at(params, head_);
  }

  MARBLE_HOST_DEVICE int remaining() const { return remaining_; }
  /// True when the next block is of the same run as the one at hand. (Others may be of the same class.)
  MARBLE_HOST_DEVICE bool stays_in_run(const BackwardParams& params) const {
    if (remaining_ == 0) return false;
    if (params.path.heads_inside && head_ != end_head_) return true;
    if (!params.path.heads_inside && left_ == 0) return false;
    return params.path.ascends ? block_ + 1 < open_.end : block_ > open_.begin;
  }
  MARBLE_HOST_DEVICE int key_block() const { return item_.block; }
  /// Splits of the item before this one that get something: its turn to add to gradients of keys.
  MARBLE_HOST_DEVICE int turn() const { return turn_; }

 private:
  /// What the index-th of `count` gets of `all`; nothing beyond the last that gets something. Returns what the first
  /// gets.
  MARBLE_HOST_DEVICE static int set_share(int index, int count, int all, int& first, int& end) {
    const int share = (all + count - 1) / count;
    first = index * share < all ? index * share : all;
    end = first + share < all ? first + share : all;
    return share;
  }

  MARBLE_HOST_DEVICE Block at(const BackwardParams& params, int head) const {
    return {params.group_heads[head],
            block_,
            params.order.ranks != nullptr ? params.order.ranks[ranks_ + place_] : 0,
            open_.block_class == BlockClass::partial,
            !params.path.heads_inside || head == first_head_,
            !params.path.heads_inside || head == end_head_ - 1};
  }

  /// Before the first block of this split's share.
  MARBLE_HOST_DEVICE void enter(const BackwardParams& params) {
    left_ = end_block_ - first_block_;
    run_ = params.path.ascends ? -1 : item_.run_count;
    place_ = params.path.ascends ? -1 : item_.tiles;
    block_ = 0;
    open_ = {};
    for (int left = first_block_; left > 0;) {
      step(params);
      const int of_run = params.path.ascends ? open_.end - 1 - block_ : block_ - open_.begin;
      const int more = of_run < left - 1 ? of_run : left - 1;
      block_ += params.path.ascends ? more : -more;
      place_ += params.path.ascends ? more : -more;
      left -= more + 1;
    }
  }

  MARBLE_HOST_DEVICE void step(const BackwardParams& params) {
    forget_registers();
    if (params.path.ascends) {
      ++place_;
      if (++block_ >= open_.end) {
        open_ = params.runs[item_.run_begin + ++run_];
        block_ = open_.begin;
      }
    } else {
      --place_;
      if (--block_ < open_.begin || open_.end == 0) {
        open_ = params.runs[item_.run_begin + --run_];
        block_ = open_.end - 1;
      }
    }
    forget_registers();
  }

  Item item_;
  std::int64_t ranks_;           // the item's first, in the order's
  int first_head_, end_head_;    // of this split, into group_heads,
  int first_block_, end_block_;  // and counted along the path among the item's
  int head_;                     // at hand
  int left_;                     // blocks of it, with a head at a time
  int run_, place_, block_;      // at hand, the place among the item's blocks
  Run open_;                     // run `run_`; empty before the first
  int remaining_;
  int turn_;
};

}  // namespace marble::cuda

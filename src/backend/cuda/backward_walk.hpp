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

/// Units come item by item, for `heads_together` key heads at a time. Without a planned order the last head takes the
/// longest items first, for all CTAs to end together.
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
  if (params.by_length != nullptr && unit.key_head == params.num_kv_heads - 1) unit.item = params.by_length[unit.item];
  return unit;
}

/// Keeps values in memory, not in registers, across this point.
MARBLE_HOST_DEVICE inline void forget_registers() {
  asm volatile("" ::: "memory");
}

/// The query blocks of an item once for each query head of the key head, on the launch's path. Splits share the heads,
/// and where there are more splits than heads, each head's blocks; those that get nothing come last. Lives in shared
/// memory: the thread that walks has few registers.
class GroupWalk {
 public:
  MARBLE_HOST_DEVICE void start(const BackwardParams& params, const BackwardUnit& unit) {
    item_ = params.items[unit.item];
    forget_registers();
    const int group = params.group_begin[unit.key_head];
    const int all = params.group_begin[unit.key_head + 1] - group;
    const int across = params.num_splits < all ? params.num_splits : all > 0 ? all : 1;
    set_share(unit.split % across, across, all, first_head_, end_head_);
    first_head_ += group;
    end_head_ += group;
    set_share(unit.split / across, params.num_splits / across, item_.tiles, first_block_, end_block_);
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
  MARBLE_HOST_DEVICE int key_block() const { return item_.block; }

 private:
  /// What the index-th of `count` gets of `all`; nothing beyond the last that gets something.
  MARBLE_HOST_DEVICE static void set_share(int index, int count, int all, int& first, int& end) {
    const int share = (all + count - 1) / count;
    first = index * share < all ? index * share : all;
    end = first + share < all ? first + share : all;
  }

  MARBLE_HOST_DEVICE Block at(const BackwardParams& params, int head) const {
    return {params.group_heads[head], block_, params.order.ranks != nullptr ? params.order.ranks[ranks_ + place_] : 0,
            open_.block_class == BlockClass::partial};
  }

  /// Before the first block of this split's share.
  MARBLE_HOST_DEVICE void enter(const BackwardParams& params) {
    left_ = end_block_ - first_block_;
    run_ = params.path.ascends ? -1 : item_.run_count;
    place_ = params.path.ascends ? -1 : item_.tiles;
    block_ = 0;
    open_ = {};
    for (int i = 0; i < first_block_; ++i) step(params);
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
};

}  // namespace marble::cuda

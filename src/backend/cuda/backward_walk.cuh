// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The query tiles of one unit of backward work. Every role of the kernel walks them by itself.

#include "backend/cuda/attention_backward.hpp"

namespace marble::cuda {

/// A (key head, item, tile of the item's keys, split) of a launch.
struct BackwardUnit {
  int key_head;
  int item;
  int key_tile;
  int split;
};

__device__ __forceinline__ BackwardUnit backward_unit_at(const BackwardParams& params, int key_tiles, int index) {
  const int tile = index / params.num_splits;
  const int item = tile / key_tiles;
  return {item / params.num_items, item % params.num_items, tile % key_tiles, index % params.num_splits};
}

/// The query blocks of an item once for each query head of the key head; with splits, this split's even share. Lives in
/// shared memory: the thread that walks has few registers.
class GroupWalk {
 public:
  __device__ __forceinline__ void start(const BackwardParams& params, const BackwardUnit& unit) {
    const Item& item = params.items[unit.item];
    head_ = params.group_begin[unit.key_head];
    const int num_heads = params.group_begin[unit.key_head + 1] - head_;
    const int all = item.tiles * num_heads;
    const int share = (all + params.num_splits - 1) / params.num_splits;
    const int first = min(unit.split * share, all);
    remaining_ = min(share, all - first);
    key_block_ = item.block;
    // A key block with pads is tested pair by pair: a pad's key is zero, but its exponential may overflow.
    tests_all_ = (item.block + 1) * kBlock > params.valid_key_rows;
    runs_ = params.runs + item.run_begin;
    num_runs_ = item.run_count;
    run_ = 0;
    open_ = {};
    if (remaining_ > 0) skip(first, item.tiles);
  }

  struct Block {
    int head;
    int index;
    bool is_partial;
  };

  __device__ __forceinline__ Block next(const BackwardParams& params) {
    --remaining_;
    if (open_.begin == open_.end) open_run();
    return {params.group_heads[head_], open_.begin++, tests_all_ || open_.block_class == BlockClass::partial};
  }

  __device__ __forceinline__ int remaining() const { return remaining_; }
  __device__ __forceinline__ int key_block() const { return key_block_; }

 private:
  __device__ __forceinline__ void open_run() {
    if (run_ == num_runs_) {
      run_ = 0;
      ++head_;
    }
    open_ = runs_[run_++];
  }

  __device__ __forceinline__ void skip(int count, int tiles) {
    head_ += count / tiles;
    count %= tiles;
    open_run();
    while (count >= open_.end - open_.begin) {
      count -= open_.end - open_.begin;
      open_run();
    }
    open_.begin += count;
  }

  int head_;  // into group_heads
  const Run* runs_;
  int num_runs_;
  int run_;
  Run open_;  // what is left of it
  int remaining_;
  int key_block_;
  bool tests_all_;
};

}  // namespace marble::cuda

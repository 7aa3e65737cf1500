// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block sequence of one unit of work, read from the plan's items and runs. Every role of a kernel walks it by
// itself.

#include "backend/cuda/key_run.hpp"
#include "backend/cuda/params.hpp"

namespace marble::cuda {

/// A (head, item, split) of a launch.
struct Unit {
  int head;
  int item;
  int split;
};

__device__ __forceinline__ Unit unit_at(int index, int num_items, int num_splits) {
  const int item_of_all = index / num_splits;
  return {item_of_all / num_items, item_of_all % num_items, index % num_splits};
}

/// Blocks of runs one by one; `next` returns false after the last. The run after the open one is always on its way, so
/// that short runs do not cost a memory latency each.
class BlockWalk {
 public:
  BlockWalk() = default;

  /// The blocks of the unit's item; with splits, this split's even share of them.
  __device__ __forceinline__ BlockWalk(const Item& item, const Run* runs, int split, int num_splits)
      : run_(runs + item.run_begin), remaining_(item.tiles) {
    int skipped = 0;
    if (num_splits > 1) {
      skipped = static_cast<int>(std::int64_t{item.tiles} * split / num_splits);
      remaining_ = static_cast<int>(std::int64_t{item.tiles} * (split + 1) / num_splits) - skipped;
    }
    if (remaining_ == 0) return;
    open_ = *run_++;
    while (skipped >= open_.end - open_.begin) {
      skipped -= open_.end - open_.begin;
      open_ = *run_++;
    }
    open_.begin += skipped;
    fetch_ahead();
  }

  __device__ __forceinline__ TileKind next_kind() const {
    if (remaining_ == 0) return kNoTile;
    return coming().block_class == BlockClass::full ? kFullTile : kPartialTile;
  }

  /// The kind of the next block; of kShortestRun full ones and more, how many follow in a row.
  __device__ __forceinline__ int next_in_a_row() const {
    const TileKind kind = next_kind();
    if (kind != kFullTile) return kind;
    const int length = min(remaining_, coming().end - coming().begin);
    return length >= kShortestRun ? length : kFullTile;
  }

  __device__ __forceinline__ bool next(int& block, BlockClass& block_class) {
    if (remaining_ == 0) return false;
    if (open_.begin == open_.end) {
      open_ = ahead_;
      fetch_ahead();
    }
    --remaining_;
    block = open_.begin++;
    block_class = open_.block_class;
    return true;
  }

  /// What is left of the open run, or the run after it, as blocks [begin, end); kNoTile after the last.
  __device__ __forceinline__ TileKind next_run(int& begin, int& end) {
    const TileKind kind = next_kind();
    if (kind == kNoTile) return kind;
    if (open_.begin == open_.end) {
      open_ = ahead_;
      fetch_ahead();
    }
    begin = open_.begin;
    end = begin + min(remaining_, open_.end - open_.begin);
    remaining_ -= end - begin;
    open_.begin = open_.end;
    return kind;
  }

 private:
  /// The run of the next block.
  __device__ __forceinline__ const Run& coming() const { return open_.begin == open_.end ? ahead_ : open_; }

  __device__ __forceinline__ void fetch_ahead() {
    if (remaining_ > open_.end - open_.begin) ahead_ = *run_++;
  }

  const Run* run_;
  int remaining_;
  Run open_;  // what is left of it
  Run ahead_;
};

}  // namespace marble::cuda

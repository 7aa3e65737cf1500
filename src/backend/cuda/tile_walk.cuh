// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block sequence of one unit of work, read from the plan's items and runs. Every role of a kernel walks it by
// itself.

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

/// Blocks of runs one by one; `next` returns false after the last.
class BlockWalk {
 public:
  /// The blocks of the unit's item; with splits, this split's even share of them.
  __device__ __forceinline__ BlockWalk(const Item& item, const Run* runs, int split, int num_splits)
      : run_(runs + item.run_begin), remaining_(item.tiles) {
    if (num_splits > 1) {
      const int first = static_cast<int>(std::int64_t{item.tiles} * split / num_splits);
      remaining_ = static_cast<int>(std::int64_t{item.tiles} * (split + 1) / num_splits) - first;
      skip(first);
    }
  }

  __device__ __forceinline__ bool next(int& block, BlockClass& block_class) {
    if (remaining_ == 0) return false;
    if (block_ == end_) open_run();
    --remaining_;
    block = block_++;
    block_class = class_;
    return true;
  }

 private:
  __device__ __forceinline__ void open_run() {
    const Run run = *run_++;
    block_ = run.begin;
    end_ = run.end;
    class_ = run.block_class;
  }

  __device__ __forceinline__ void skip(int count) {
    while (count > 0) {
      open_run();
      const int skipped = min(count, end_ - block_);
      block_ += skipped;
      count -= skipped;
    }
  }

  const Run* run_;
  int remaining_;
  int block_ = 0;
  int end_ = 0;
  BlockClass class_ = BlockClass::full;
};

}  // namespace marble::cuda

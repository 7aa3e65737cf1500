// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the CPU backend's compiled-for-the-processor part offers to the rest of it: one task at a time, plain pointers
// in and out, no allocation and no container, so that no code for newer processors leaks into shared functions.
//
// Shapes: a tile is `rows` queries x `keys` keys, column-major with `tile_rows(block)` rows, so that work along the
// queries vectorises and never meets a ragged end. Vectors per query row have tile_rows(block) entries too.

#include "backend/key_rows.hpp"

#include "marble/rank_plan.hpp"
#include "marble/tensor.hpp"

#include <atomic>
#include <cstdint>

namespace marble::cpu {

inline constexpr std::int32_t kMaxHeadDim = 256;
inline constexpr std::int32_t kMaxBlock = 256;

/// Rows of a tile: a multiple of the widest vector.
constexpr std::int64_t tile_rows(std::int32_t block) {
  return (block + 15) / 16 * 16;
}

/// One head of a tensor: row r starts `r * row_stride` elements after `data`.
struct HeadView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t row_stride = 0;
};

/// What both passes need to know about a work.
struct Problem {
  const Run* runs = nullptr;                // the whole section
  const std::int32_t* key_valid = nullptr;  // valid rows of each key block of this work
  bool uses_tracks = false;                 // partial tiles: tracks, not intervals
  const RowInterval* intervals = nullptr;   // per key row
  const TokenTracks* query_tracks = nullptr;
  const TokenTracks* key_tracks = nullptr;
  MaskRule rule;
  std::int64_t valid_query_rows = 0;
  std::int32_t block = 0;
  std::int32_t head_dim = 0;
  float scale = 0.0F;
  float softcap = 0.0F;  // 0: none

  [[nodiscard]] std::int64_t query_rows_in(std::int32_t query_block) const {
    const std::int64_t left = valid_query_rows - std::int64_t{query_block} * block;
    return left < block ? (left > 0 ? left : 0) : block;
  }
};

/// One query block and head. `state` is this block's and head's: output tile, max, sum.
struct ForwardTask {
  const Item* item = nullptr;
  HeadView q, k, v, out, lse;
  float* state = nullptr;
};

// Several key blocks add into one dQ tile. They do so in the order of the plan's items, whatever the number of threads:
// `done` counts the contributions to each query block so far, and a task waits until it reads the task's own turn.

/// A query head of a backward task. dq is its accumulator: a dense [block, head_dim] tile per query block.
struct BackwardHead {
  HeadView q, dout, lse, delta;
  float* dq = nullptr;
  std::int64_t dq_stride = 0;  // floats from one query block's tile to the next
  std::atomic<std::int32_t>* done = nullptr;
};

/// One key block and key head, with all query heads that read it: the only one to add into these rows of dk and dv.
struct BackwardTask {
  const Item* item = nullptr;
  HeadView k, v, dk, dv;
  const BackwardHead* heads = nullptr;
  std::int32_t num_heads = 0;
  const std::int32_t* turns = nullptr;        // per block of the item's runs
  const std::atomic<bool>* failed = nullptr;  // another task threw: stop waiting
};

/// A query block's and head's carried forward state: the unnormalised output tile, then the max and the sum per row.
[[nodiscard]] constexpr std::int64_t state_floats(std::int32_t block, std::int32_t head_dim) {
  return tile_rows(block) * (head_dim + 2);
}
/// Memory of one task, 64-byte aligned.
[[nodiscard]] constexpr std::int64_t scratch_floats(std::int32_t block, std::int32_t head_dim) {
  const std::int64_t rows = tile_rows(block);
  return 3 * rows * rows + 8 * rows * head_dim + 8 * rows;
}

/// `convert`: target = source, each of its own dtype, rounding once. `dot`: fp32 sum of products.
struct Kernels {
  const char* name;
  void (*forward)(const Problem&, const ForwardTask&, float* scratch);
  void (*backward)(const Problem&, const BackwardTask&, float* scratch);
  void (*convert)(const void* source, DType source_type, void* target, DType target_type, std::int64_t count);
  float (*dot)(const void* a, const void* b, DType dtype, std::int64_t count);
};

}  // namespace marble::cpu

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a launch hands to its kernel: plain structs, shared by host and device. Strides count elements, offsets are
// 64-bit, and all pointers are device pointers.

#include "backend/key_rows.hpp"

#include "marble/rank_plan.hpp"
#include "marble/tensor.hpp"

#include <cstdint>

namespace marble::cuda {

inline constexpr int kBlock = 128;  // rows of a planning block; every kernel tile divides it
inline constexpr int kMaxSplits = 16;

/// The visibility of one row for the four-track test.
struct RowTracks {
  std::int32_t sample;  // -1: a pad, which nobody sees
  std::int32_t segment;
  std::int32_t noise;
  std::int32_t position;
};

/// What partial blocks are tested against, expanded once per plan. Arrays cover whole blocks; pads are invisible.
struct VisibilityArrays {
  const RowInterval* key_intervals = nullptr;  // [key_rows], null when the plan uses tracks
  const RowTracks* key_tracks = nullptr;       // [key_rows]
  const RowTracks* query_tracks = nullptr;     // [query_rows]
  MaskRule rule;
};

/// What happens to raw scores before the softmax; `none` is the fast path.
enum class ScoreMap : std::int32_t {
  none,
  multiply,  // by score_scale: a softmax scale that is not positive
  softcap,   // tanh(score * score_scale)
};

struct StridedRows {
  void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

inline StridedRows strided(const TensorView& view) {
  return {view.data, view.row_stride, view.head_stride};
}

/// One work's forward pass. A unit is one (head, item, split); units are handed out head by head, items in plan order.
struct ForwardParams {
  const Item* items = nullptr;             // [num_items]
  const Run* runs = nullptr;               // the plan's runs, which items index
  const std::int32_t* head_map = nullptr;  // [num_heads] query head -> key head
  VisibilityArrays visibility;
  std::int32_t num_items = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_blocks = 0;  // query blocks of the rank
  std::int32_t num_splits = 1;  // CTAs that share one item's keys
  std::int32_t head_dim = 0;    // of the tensors; tiles pad it
  bool is_aligned = true;       // bases, strides and head_dim allow 16-byte accesses
  std::int32_t valid_query_rows = 0;
  std::int32_t valid_key_rows = 0;

  ScoreMap score_map = ScoreMap::none;
  float score_scale = 0.f;
  float exponent_scale = 0.f;  // mapped scores times this are base-2 exponents; positive

  StridedRows q, k, v, out;
  float* lse = nullptr;
  std::int64_t lse_row_stride = 0;
  std::int64_t lse_head_stride = 0;
  float* state = nullptr;           // [num_heads][num_blocks] carried states, in register order
  float* partials = nullptr;        // [num_heads][num_items][num_splits] states, when num_splits > 1
  std::int32_t* counter = nullptr;  // next unit, zero at launch
};

/// The planned order of sums (planned_order.hpp), and the counters that keep it; null when any order will do.
struct PlannedOrder {
  const std::int32_t* ranks = nullptr;       // of the work's items, block by block
  const std::int64_t* item_begin = nullptr;  // [num_items] into ranks
  std::int32_t* query_turns = nullptr;       // [num_heads][num_blocks], or one a query tile; zero at launch
  std::int32_t* key_turns = nullptr;         // [num_kv_heads][num_items][key tiles], zero at launch
};

/// How a backward unit goes through its query blocks (backward_order.hpp).
struct QueryPath {
  bool ascends = false;
  bool heads_inside = true;  // a block with all query heads, then the next; otherwise a head with all blocks
};

/// One work's backward pass. A unit is one (key head, item, tile of its keys, split); it meets the query blocks of its
/// item once for each query head that reads the key head.
struct BackwardParams {
  const Item* items = nullptr;                // [num_items], in the order of backward_order.hpp
  const Run* runs = nullptr;                  // the plan's runs, which items index
  const std::int32_t* group_begin = nullptr;  // [num_kv_heads + 1] into group_heads
  const std::int32_t* group_heads = nullptr;  // query heads, by the key head that they read
  VisibilityArrays visibility;
  std::int32_t num_units = 0;
  std::int32_t num_items = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t num_blocks = 0;       // query blocks of the rank
  std::int32_t head_splits = 1;      // units that share an item's query heads,
  std::int32_t block_splits = 1;     // and those that share its query blocks
  std::int32_t inner_splits = 1;     // of the latter, those that follow each other item by item
  std::int32_t units_per_split = 0;  // of a key head: of all items before the next split
  std::int32_t units_per_head = 0;
  std::int32_t heads_together = 1;  // key heads whose units alternate in the work array
  /// [num_items] positions, longest first: the order of the last key head's items; null: as they are.
  const std::int32_t* by_length = nullptr;
  QueryPath path;
  std::int32_t head_dim = 0;  // of the tensors; tiles pad it
  std::int32_t valid_query_rows = 0;
  std::int32_t valid_key_rows = 0;

  bool has_softcap = false;
  bool is_aligned = true;      // bases, strides and head_dim of the inputs allow 16-byte accesses
  float score_scale = 0.f;     // softcap: tanh(score * score_scale)
  float exponent_scale = 0.f;  // (capped) scores times this are base-2 exponents
  float gradient_scale = 0.f;  // of dK; that of dQ waits for finish_dq

  StridedRows q, k, v, dout;           // read by the plain kernel
  StridedRows dk, dv;                  // fp32
  float* dq = nullptr;                 // accumulator tiles
  const float* lse = nullptr;          // DqLayout::lse
  const float* minus_delta = nullptr;  // DqLayout::minus_delta
  std::int32_t* counter = nullptr;     // next unit, zero at launch
  PlannedOrder order;
};

}  // namespace marble::cuda

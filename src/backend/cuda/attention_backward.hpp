// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The backward kernels as the host sees them. `dim` is the tile's head dimension: 64, 128 or 256.

#include "backend/cuda/params.hpp"

#include "marble/tensor.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace marble::cuda {

/// Where things lie in a dQ accumulator, in floats. Tiles [num_heads][num_blocks][128 x dim] hold dQ before the softmax
/// scale, as the threads that add to them hold it; statistics are what a work needs of its query rows.
struct DqLayout {
  std::int64_t padded_rows = 0;
  std::int64_t lse = 0;          // [num_heads][padded_rows], times log2(e); +inf where nothing is to be added
  std::int64_t minus_delta = 0;  // [num_heads][padded_rows]
  std::int64_t scale = 0;        // what finish_dq multiplies by
  std::int64_t size = 0;
};

constexpr DqLayout dq_layout(std::int64_t num_heads, std::int64_t num_blocks, int dim) {
  DqLayout layout;
  layout.padded_rows = num_blocks * kBlock;
  layout.lse = num_heads * layout.padded_rows * dim;
  layout.minus_delta = layout.lse + num_heads * layout.padded_rows;
  layout.scale = layout.minus_delta + num_heads * layout.padded_rows;
  layout.size = layout.scale + 4;
  return layout;
}

/// One work's backward pass. A unit is one (key head, item, tile of its keys, split); it meets the query blocks of its
/// item once for each query head that reads the key head.
struct BackwardParams {
  const Item* items = nullptr;                // [num_items]
  const Run* runs = nullptr;                  // the plan's runs, which items index
  const std::int32_t* group_begin = nullptr;  // [num_kv_heads + 1] into group_heads
  const std::int32_t* group_heads = nullptr;  // query heads, by the key head that they read
  VisibilityArrays visibility;
  std::int32_t num_units = 0;
  std::int32_t num_items = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t num_blocks = 0;  // query blocks of the rank
  std::int32_t num_splits = 1;  // CTAs that share one item's queries
  std::int32_t head_dim = 0;    // of the tensors; tiles pad it
  std::int32_t valid_query_rows = 0;
  std::int32_t valid_key_rows = 0;

  bool has_softcap = false;
  float score_scale = 0.f;     // softcap: tanh(score * score_scale)
  float exponent_scale = 0.f;  // (capped) scores times this are base-2 exponents
  float gradient_scale = 0.f;  // of dK; that of dQ waits for finish_dq

  StridedRows q, k, v, dout;           // read by the plain kernel
  StridedRows dk, dv;                  // fp32
  float* dq = nullptr;                 // accumulator tiles
  const float* lse = nullptr;          // DqLayout::lse
  const float* minus_delta = nullptr;  // DqLayout::minus_delta
  std::int32_t* counter = nullptr;     // next unit, zero at launch
};

struct BackwardTensorMaps {
  CUtensorMap q, k, v, dout;
};

/// Rows in a box of the tensor maps of K and V, and of Q and dO; tiles of keys in a block.
[[nodiscard]] int backward_tile_keys(int dim);
[[nodiscard]] int backward_tile_queries(int dim);
[[nodiscard]] int backward_key_tiles(int dim);

/// Writes the statistics and the scale of `accumulator`, laid out as `layout` says.
void prepare_row_statistics(const TensorView& lse, const TensorView& delta, std::int64_t valid_rows, float scale,
                            const DqLayout& layout, float* accumulator, cudaStream_t stream);

void launch_attention_backward_sm90(const BackwardParams& params, const BackwardTensorMaps& maps, DType dtype, int dim,
                                    int num_ctas, cudaStream_t stream);

/// Any GPU, head dimension up to 256 and strides; ignores num_splits.
void launch_attention_backward_plain(const BackwardParams& params, DType dtype, int dim, cudaStream_t stream);

/// dq = scale * the accumulated tiles, rounded once; rows beyond `valid_rows` become zero.
void finish_dq_tiles(const float* accumulator, const DqLayout& layout, const TensorView& dq, std::int64_t valid_rows,
                     int dim, cudaStream_t stream);

/// One instantiation; each is compiled in a file of its own.
template <typename T, int kDim>
void launch_backward_sm90(const BackwardParams& params, const BackwardTensorMaps& maps, int num_ctas,
                          cudaStream_t stream);

}  // namespace marble::cuda

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
  std::int64_t query_turns = 0;  // [num_heads][num_blocks][query tiles], and
  std::int64_t key_turns = 0;    // [num_kv_heads][num_items][key tiles]: counters of a launch with a planned order
  std::int64_t size = 0;
};

/// `num_key_units`: the most (key head, item) pairs of a work.
constexpr DqLayout dq_layout(std::int64_t num_heads, std::int64_t num_blocks, int dim, std::int64_t num_key_units) {
  DqLayout layout;
  layout.padded_rows = num_blocks * kBlock;
  layout.lse = num_heads * layout.padded_rows * dim;
  layout.minus_delta = layout.lse + num_heads * layout.padded_rows;
  layout.scale = layout.minus_delta + num_heads * layout.padded_rows;
  layout.query_turns = layout.scale + 4;
  constexpr int kMostQueryTiles = 2;  // of a block that have turns of their own
  constexpr int kMostKeyTiles = 4;    // of a block
  layout.key_turns = layout.query_turns + num_heads * num_blocks * kMostQueryTiles;
  layout.size = layout.key_turns + num_key_units * kMostKeyTiles;
  return layout;
}

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

/// Any GPU, head dimension up to 256 and strides. `shared_bytes`: what a CTA may have on this GPU.
void launch_attention_backward_sm80(const BackwardParams& params, DType dtype, int dim, int shared_bytes,
                                    cudaStream_t stream);

/// dq = scale * the accumulated tiles, rounded once; rows beyond `valid_rows` become zero.
void finish_dq_tiles(const float* accumulator, const DqLayout& layout, const TensorView& dq, std::int64_t valid_rows,
                     int dim, cudaStream_t stream);

// Instantiations, each compiled in a file of its own.
template <typename T, int kDim>
void launch_backward_sm90(const BackwardParams& params, const BackwardTensorMaps& maps, int num_ctas,
                          cudaStream_t stream);
template <typename T, int kDim>
void launch_backward_sm80(const BackwardParams& params, int shared_bytes, cudaStream_t stream);

}  // namespace marble::cuda

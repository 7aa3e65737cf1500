// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The forward kernels as the host sees them. `dim` is the tile's head dimension: 64, 128 or 256.

#include "backend/cuda/params.hpp"

#include "marble/tensor.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace marble::cuda {

struct ForwardTensorMaps {
  CUtensorMap q, k, v;
};

/// Bytes of one carried state: 128 query rows of one head.
[[nodiscard]] std::int64_t state_slot_bytes(int dim);

/// Keys in a box of the K and V tensor maps.
[[nodiscard]] int forward_tile_keys(int dim);

void launch_attention_forward_sm90(const ForwardParams& params, const ForwardTensorMaps& maps, DType dtype, int dim,
                                   int num_ctas, cudaStream_t stream);

void launch_attention_forward_sm80(const ForwardParams& params, DType dtype, int dim, cudaStream_t stream);

/// Merges the partial states of split items, in split order, with the carried state.
void launch_attention_merge(const ForwardParams& params, DType dtype, int dim, cudaStream_t stream);

// Instantiations, each compiled in a file of its own.
template <typename T, int kDim>
void launch_forward_sm90(const ForwardParams& params, const ForwardTensorMaps& maps, int num_ctas, cudaStream_t stream);
template <typename T, int kDim>
void launch_forward_sm80(const ForwardParams& params, cudaStream_t stream);

}  // namespace marble::cuda

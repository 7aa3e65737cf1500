// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Element-wise work round the attention kernels, on views with any strides.

#include "marble/backend.hpp"
#include "marble/tensor.hpp"

#include <cuda_runtime_api.h>

#include <span>

namespace marble::cuda {

/// Makes all copies at once, as Backend::copy says, in one launch for every 48 of them.
void copy_elements(std::span<const Copy> copies, cudaStream_t stream);

/// target = source, each of its own dtype, rounding once. Shapes agree.
void cast_elements(const TensorView& source, const TensorView& target, cudaStream_t stream);

/// delta[row][head] = sum over the head dimension of out * dout, in fp32, for `valid_rows` rows.
void row_products(const TensorView& out, const TensorView& dout, const TensorView& delta, std::int64_t valid_rows,
                  cudaStream_t stream);

}  // namespace marble::cuda

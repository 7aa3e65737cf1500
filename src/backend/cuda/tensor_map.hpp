// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Descriptors for the tensor memory accelerator.

#include "marble/tensor.hpp"

#include <cuda.h>

namespace marble::cuda {

/// Boxes of `box_rows` rows x 64 columns of one head, swizzled by 128 bytes. Elements are 16-bit, base and strides
/// multiples of 16 bytes. Rows from `valid_rows` on, and columns
/// beyond the head dimension, read as zeros: pads may hold anything.
[[nodiscard]] CUtensorMap make_tensor_map(const TensorView& view, std::int64_t valid_rows, int box_rows);

}  // namespace marble::cuda

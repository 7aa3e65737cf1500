// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The head dimensions that kernels are compiled for; tensors of others are padded to the next one.

#include "backend/cuda/cuda_error.hpp"

#include "marble/tensor.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace marble::cuda {

inline constexpr std::int32_t kMaxHeadDim = 256;

/// The tile that pads `head_dim`.
[[nodiscard]] constexpr int tile_dim(std::int32_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : kMaxHeadDim;
}

/// Calls fn(element, dimension) with a value of the element type, and the tile dimension as an integral constant.
template <typename Fn>
void dispatch(DType dtype, int dim, Fn&& fn) {
  const auto with_type = [&]<typename T>(T) {
    switch (dim) {
      case 64:
        return fn(T{}, std::integral_constant<int, 64>{});
      case 128:
        return fn(T{}, std::integral_constant<int, 128>{});
      case 256:
        return fn(T{}, std::integral_constant<int, 256>{});
    }
    fail_internal("no attention tile of this head dimension");
  };
  if (dtype == DType::bf16) return with_type(__nv_bfloat16{});
  if (dtype != DType::fp16) fail_internal("no attention tile of this dtype");
  with_type(__half{});
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/cuda_error.hpp"

#include "marble/tensor.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace marble::cuda {

/// Calls fn with a value of the device's type for `dtype`.
template <typename Fn>
void with_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::fp32:
      return fn(float{});
    case DType::bf16:
      return fn(__nv_bfloat16{});
    case DType::fp16:
      return fn(__half{});
  }
  fail_internal("dtype out of range");
}

}  // namespace marble::cuda

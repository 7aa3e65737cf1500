// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fp64 arithmetic of the dense reference on a GPU: what its kernels read and write, and their launches.

#include "marble/mask.hpp"
#include "marble/tensor.hpp"

#include <cstdint>

namespace marble::dense {

/// Device pointers. Tensors are [tokens, heads, dim] (k, v and their gradients: kv_heads), scalars [tokens, heads].
struct DeviceProblem {
  const TokenTracks* tracks = nullptr;  // [tokens]
  MaskRule rule;
  std::int64_t tokens = 0;
  std::int32_t heads = 1;
  std::int32_t kv_heads = 1;
  std::int32_t dim = 1;
  double scale = 0.0;
  double softcap = 0.0;  // 0: none
  DType dtype = DType::fp32;
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* dout = nullptr;

  double* out = nullptr;
  double* lse = nullptr;
  double* delta = nullptr;         // rowsum(out * dout)
  double* delta_change = nullptr;  // what rounding out to dtype adds to it
  double* dq = nullptr;
  double* dk = nullptr;
  double* dv = nullptr;
  float* dq_stored = nullptr;  // with delta_change added to delta
  float* dk_stored = nullptr;
};

// On the default stream; each needs the one before it.
void launch_attend(const DeviceProblem& problem);          // out, lse
void launch_delta(const DeviceProblem& problem);           // delta, delta_change
void launch_query_gradient(const DeviceProblem& problem);  // dq, dq_stored
void launch_key_gradient(const DeviceProblem& problem);    // dk, dk_stored, dv

}  // namespace marble::dense

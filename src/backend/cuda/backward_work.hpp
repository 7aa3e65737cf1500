// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Backward works as launches.

#include "backend/cuda/bound_plan.hpp"

namespace marble::cuda {

/// Bytes of the dQ accumulator of a plan: fp32 tiles, and what a work needs of its query rows.
[[nodiscard]] std::int64_t dq_accumulator_bytes(const RankPlan& plan);

/// Where a backend's launches go.
struct LaunchTarget {
  cudaStream_t stream = nullptr;
  int num_multiprocessors = 0;
  std::int32_t* counter = nullptr;  // of the launch in flight
  bool is_hopper = false;
  int shared_bytes = 0;  // that a CTA may have
  int cache_bytes = 0;   // of the second level
};

void attend_backward(const CudaBoundPlan& bound, std::int32_t index, const BackwardTensors& tensors,
                     const AttentionOptions& options, const LaunchTarget& target);

void finish_dq(const RankPlan& plan, const void* accumulator, const TensorView& dq, cudaStream_t stream);

}  // namespace marble::cuda

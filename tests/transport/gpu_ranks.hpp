// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks as processes with a GPU each, for tests.

#include "transport/nccl/rendezvous.hpp"

#include "marble/transport.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>

namespace marble {

inline void check_test_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

inline const NcclOptions& gpu_test_ranks() {
  static const NcclOptions options = [] {
    NcclOptions resolved = resolve_nccl_options({});
    check_test_cuda(cudaSetDevice(resolved.device));
    return resolved;
  }();
  return options;
}

/// A barrier. A rank may still be in the last test, and limits are short.
inline void meet_gpu_ranks() {
  const NcclOptions& options = gpu_test_ranks();
  constexpr std::chrono::seconds kLimit{60};
  [[maybe_unused]] const auto meeting =
      nccl::meet(options.rank, options.num_ranks, options.address, options.port + 1, kLimit);
}

}  // namespace marble

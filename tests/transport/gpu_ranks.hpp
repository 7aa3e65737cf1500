// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks as processes with a GPU each, for tests.

#include "transport/nccl/cuda_device.hpp"
#include "transport/nccl/nccl_library.hpp"
#include "transport/nccl/rendezvous.hpp"

#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <vector>

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

/// Those that this machine can take; without NCCL, which says why, sends and receives are not tested.
inline std::vector<Rung> rungs_here() {
  std::vector<Rung> rungs = {Rung::copy};
  try {
    nccl::CudaDevice device(gpu_test_ranks().device, nullptr);
    [[maybe_unused]] const auto library = nccl::find_nccl(gpu_test_ranks().nccl_library, device);
    rungs.push_back(Rung::sendrecv);
  } catch (const BackendError& error) {
    std::fprintf(stderr, "rung sendrecv is not tested: %s\n", error.what());
  }
  return rungs;
}

/// A barrier. A rank may still be in the last test, and limits are short.
inline void meet_gpu_ranks() {
  const NcclOptions& options = gpu_test_ranks();
  constexpr std::chrono::seconds kLimit{60};
  [[maybe_unused]] const auto meeting =
      nccl::meet(options.rank, options.num_ranks, options.address, options.port + 1, kLimit);
}

}  // namespace marble

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

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>

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

inline constexpr std::array kRungs = {Rung::copy, Rung::put, Rung::sendrecv};

/// Why this machine cannot take a rung; empty: it can. Tests of such a rung are skipped, each by its name.
inline std::string why_not_here(Rung rung) {
  nccl::CudaDevice device(gpu_test_ranks().device, nullptr);
  if (rung != Rung::sendrecv && !device.why_no_waits().empty()) return device.why_no_waits();
  if (rung == Rung::copy) return {};
  try {
    const auto library = nccl::find_nccl(gpu_test_ranks().nccl_library, device);
    return rung == Rung::put ? library->why_no_put() : "";
  } catch (const BackendError& error) {
    return error.what();
  }
}

/// A barrier. A rank may still be in the last test, and limits are short.
inline void meet_gpu_ranks() {
  const NcclOptions& options = gpu_test_ranks();
  constexpr std::chrono::seconds kLimit{60};
  [[maybe_unused]] const auto meeting =
      nccl::meet(options.rank, options.num_ranks, options.address, options.port + 1, kLimit);
}

}  // namespace marble

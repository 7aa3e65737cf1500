// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_error.hpp"

#include "marble/error.hpp"

namespace marble::cuda {

void check_cuda(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  throw BackendError(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

void fail_internal(std::string_view what) {
  throw InternalError(std::string(what));
}

}  // namespace marble::cuda

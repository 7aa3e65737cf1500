// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace marble::cuda {

/// Throws BackendError with the device's own words unless `status` is success. Device files report through this alone:
/// nvcc cannot compile fmt's headers.
void check_cuda(cudaError_t status, std::string_view what);

/// Throws InternalError.
[[noreturn]] void fail_internal(std::string_view what);

}  // namespace marble::cuda

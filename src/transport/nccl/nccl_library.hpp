// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/nccl/cuda_device.hpp"
#include "transport/nccl/library.hpp"

#include <memory>
#include <string>

namespace marble::nccl {

/// NCCL, found at run time: at `path`, or, if that is empty, the one that this process has loaded already, or the
/// system's. Throws BackendError when there is none that serves. `device` outlives it.
[[nodiscard]] std::unique_ptr<Library> find_nccl(const std::string& path, CudaDevice& device);

}  // namespace marble::nccl

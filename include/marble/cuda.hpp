// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA backend: NVIDIA GPUs from compute capability 8.0 on, with kernels of their own for Hopper (9.0). Everything
// is asked for on one stream, and nothing but `copy_to_host`, `bind` and `synchronize` waits. Same plan, same bits.

#include "marble/backend.hpp"

#include <memory>

namespace marble {

/// True when this library was built with CUDA and a device is present.
[[nodiscard]] bool cuda_available();

/// On device `device`. `stream` is a cudaStream_t that outlives the backend; null is the device's default stream.
/// Throws InvalidArgument when this library was built without CUDA, BackendError when the device cannot be used.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(int device = 0, void* stream = nullptr);

}  // namespace marble

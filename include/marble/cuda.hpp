// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA backend: NVIDIA GPUs from compute capability 8.0 on, with kernels of their own for Hopper (9.0). Everything
// is asked for on one stream, and nothing but `copy_to_host` and `synchronize` waits. Same plan, same bits.

#include "marble/backend.hpp"

#include <cstdint>
#include <memory>

namespace marble {

/// GPUs of this machine; 0 when this library was built without CUDA.
[[nodiscard]] int cuda_device_count();
[[nodiscard]] inline bool cuda_available() {
  return cuda_device_count() > 0;
}

/// On device `device`, with a stream of its own, so that ranks as threads share a GPU. Throws InvalidArgument when this
/// library was built without CUDA or there is no such device, BackendError when the device cannot be used.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(int device = 0);

/// Where a backend takes memory of its device, for applications with an allocator of their own. Calls come in the order
/// of the backend's stream: memory given back may serve what the stream is asked for afterwards.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// At least 256-byte aligned.
  [[nodiscard]] virtual void* allocate(std::int64_t bytes) = 0;
  virtual void free(void* data) noexcept = 0;
};

/// Which kernels to use: the device's best, or (for tests and comparisons) those that any device has: plain ones, with
/// the device's shared memory or with what the least of them has.
enum class CudaKernels { best, plain, compact };

/// On `stream`, a cudaStream_t that outlives the backend; null is the device's default stream. `memory` serves the
/// backend and the plans bound to it; null is the device's own.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(int device, void* stream,
                                                         std::unique_ptr<DeviceMemory> memory = nullptr,
                                                         CudaKernels kernels = CudaKernels::best);

}  // namespace marble

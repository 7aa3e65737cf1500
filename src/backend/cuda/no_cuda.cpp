// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/cuda.hpp"
#include "marble/error.hpp"

namespace marble {

int cuda_device_count() {
  return 0;
}

std::unique_ptr<Backend> make_cuda_backend(int) {
  throw InvalidArgument("this library was built without CUDA (MARBLE_CUDA); the cpu backend is available");
}

std::unique_ptr<Backend> make_cuda_backend(int device, void*, std::unique_ptr<DeviceMemory>, CudaKernels) {
  return make_cuda_backend(device);
}

}  // namespace marble

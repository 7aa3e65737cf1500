// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/cuda.hpp"
#include "marble/error.hpp"

namespace marble {

bool cuda_available() {
  return false;
}

std::unique_ptr<Backend> make_cuda_backend(int, void*) {
  throw InvalidArgument("this library was built without CUDA (MARBLE_CUDA); the cpu backend is available");
}

}  // namespace marble

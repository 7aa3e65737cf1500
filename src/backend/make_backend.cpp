// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/backend.hpp"
#include "marble/cuda.hpp"
#include "marble/error.hpp"

namespace marble {

std::unique_ptr<Backend> make_backend(std::string_view name, int device, int num_threads) {
  if (name == "cpu") return make_cpu_backend(num_threads);
  require(name == "cuda", "unknown backend '{}'; use cpu or cuda", name);
  return make_cuda_backend(device);
}

}  // namespace marble

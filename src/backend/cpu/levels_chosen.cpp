// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// One level only: the one that MARBLE_ARCH names, or the compiler's default.

#include "backend/cpu/levels.hpp"

namespace marble::cpu {

namespace chosen {
const Kernels& kernels();
}

std::vector<const Kernels*> usable_kernels() {
  return {&chosen::kernels()};
}

}  // namespace marble::cpu

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The default on x86-64: AVX-512 kernels where the machine has them, else AVX2.

#include "backend/cpu/levels.hpp"

namespace marble::cpu {

namespace avx2 {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
}

std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> usable;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
    return usable;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    usable.push_back(&avx512::kernels());
  usable.push_back(&avx2::kernels());
  return usable;
}

}  // namespace marble::cpu

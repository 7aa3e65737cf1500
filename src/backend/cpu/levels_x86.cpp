// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The default on x86-64: AVX-512 kernels where the machine has them, else AVX2.

#include "backend/cpu/levels.hpp"

#include "marble/error.hpp"

namespace marble::cpu {

namespace avx2 {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
}

const Kernels& best_kernels() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return avx512::kernels();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
    throw BackendError("this processor lacks AVX2 or FMA; build with -DMARBLE_ARCH= (empty) for any x86-64");
  return avx2::kernels();
}

}  // namespace marble::cpu

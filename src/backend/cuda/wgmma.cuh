// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Hopper's warpgroup matrix product: 64 x kN (+)= 64 x 16 times 16 x kN, asynchronous, accumulators in registers.
//
// Fragment ownership within a warpgroup: thread t owns rows 16 * (t / 32) + (t % 32) / 4 and that + 8. Accumulator
// 4j + e (e = 0, 1) is the first row's column 8j + 2 * (t % 4) + e, 4j + 2 + e the second row's. Packed in pairs the
// accumulators of 16 columns are exactly the four A registers of the next product.

#include "backend/cuda/ptx.cuh"

namespace marble::cuda {

/// Orders register accesses before the next wgmma that names those registers.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of `registers` across this point; it cannot see that wgmma writes them later.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int kCount>
__device__ __forceinline__ void pin_registers(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// Copies that ptxas cannot take for renaming. Where a product in flight reads `from` and its place is needed next, it
/// would give up overlapping products (C7512) rather than copy.
template <int kCount>
__device__ __forceinline__ void copy_registers(std::uint32_t (&to)[kCount], const std::uint32_t (&from)[kCount]) {
  const std::uint32_t zero = thread_index() >> 20;
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("xor.b32 %0, %1, %2;" : "=r"(to[i]) : "r"(from[i]), "r"(zero));
}

/// Keeps the compiler from merging alike heads or tails of two branches: the branch would then lie between an
/// asynchronous product and its wait, where ptxas gives up overlapping (C7518).
template <int kBranch>
__device__ __forceinline__ void keep_apart() {
  asm volatile("// branch %0" ::"n"(kBranch) : "memory");
}

/// Shared-memory matrix descriptor for tiles swizzled by 128 bytes. Offsets are in bytes: from one group of eight
/// 128-byte rows to the next, and (transposed operands only) from one 64-column box to the next.
__device__ __forceinline__ std::uint64_t matrix_descriptor(const void* tile, std::uint32_t row_group_offset,
                                                           std::uint32_t box_offset) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | (std::uint64_t{row_group_offset >> 4} << 32) | (std::uint64_t{box_offset >> 4} << 16) |
         ((shared_address(tile) >> 4) & 0x3FFF);
}

/// The same descriptor, computed anew: hoisted out of a loop, those of all its steps would take two registers each.
__device__ __forceinline__ std::uint64_t fresh(std::uint64_t descriptor) {
  asm volatile("" : "+l"(descriptor));
  return descriptor;
}

/// `bytes` further into the tile of a descriptor.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t descriptor, std::uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

#define MARBLE_ACC8(d, i)                                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define MARBLE_ACC16(d, i) MARBLE_ACC8(d, i), MARBLE_ACC8(d, i + 8)
#define MARBLE_ACC32(d, i) MARBLE_ACC8(d, i), MARBLE_ACC8(d, i + 8), MARBLE_ACC8(d, i + 16), MARBLE_ACC8(d, i + 24)
#define MARBLE_ACC64(d, i) MARBLE_ACC32(d, i), MARBLE_ACC32(d, i + 32)
#define MARBLE_ACC128(d, i) MARBLE_ACC64(d, i), MARBLE_ACC64(d, i + 64)
#define MARBLE_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MARBLE_NAMES32                                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define MARBLE_NAMES64                                                                                               \
  MARBLE_NAMES32                                                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MARBLE_NAMES128                                                                                              \
  MARBLE_NAMES64                                                                                                     \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, " \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
  "%125, %126, %127"

// D = A * B + (accumulate ? D : 0), A and B in shared memory. The reduced axis of A is contiguous, that of B too unless
// its columns are (`transposed` "1").
#define MARBLE_WGMMA_SS(n, type, transposed, names, a, b, flag, outputs, d)                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" flag ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type \
               "." type " {" names "}, %" a ", %" b ", p, 1, 1, 0, " transposed ";\n}"                               \
               : outputs(d, 0)                                                                                       \
               : "l"(a_descriptor), "l"(b_descriptor), "r"(accumulate))

// D += A * B, A in registers, B in shared memory with its columns contiguous (transposed).
#define MARBLE_WGMMA_RS(n, type, names, a0, a1, a2, a3, b, outputs, d)                                                \
  asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type \
               " {" names "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", p, 1, 1, 1;\n}"                           \
               : outputs(d, 0)                                                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_descriptor))

template <typename T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<__nv_bfloat16> = true;

/// Both operands from shared memory; kCount accumulators a thread, so kN = 2 * kCount.
template <typename T, int kCount>
__device__ __forceinline__ void wgmma_shared(float (&d)[kCount], std::uint64_t a_descriptor, std::uint64_t b_descriptor,
                                             int accumulate) {
  static_assert(kCount == 16 || kCount == 32 || kCount == 64, "tiles are 32, 64 or 128 columns wide");
  if constexpr (kCount == 16 && kIsBf16<T>)
    MARBLE_WGMMA_SS("32", "bf16", "0", MARBLE_NAMES16, "16", "17", "18", MARBLE_ACC16, d);
  else if constexpr (kCount == 16)
    MARBLE_WGMMA_SS("32", "f16", "0", MARBLE_NAMES16, "16", "17", "18", MARBLE_ACC16, d);
  else if constexpr (kCount == 32 && kIsBf16<T>)
    MARBLE_WGMMA_SS("64", "bf16", "0", MARBLE_NAMES32, "32", "33", "34", MARBLE_ACC32, d);
  else if constexpr (kCount == 32)
    MARBLE_WGMMA_SS("64", "f16", "0", MARBLE_NAMES32, "32", "33", "34", MARBLE_ACC32, d);
  else if constexpr (kIsBf16<T>)
    MARBLE_WGMMA_SS("128", "bf16", "0", MARBLE_NAMES64, "64", "65", "66", MARBLE_ACC64, d);
  else
    MARBLE_WGMMA_SS("128", "f16", "0", MARBLE_NAMES64, "64", "65", "66", MARBLE_ACC64, d);
}

/// Both operands from shared memory, B transposed.
template <typename T, int kCount>
__device__ __forceinline__ void wgmma_shared_transposed(float (&d)[kCount], std::uint64_t a_descriptor,
                                                        std::uint64_t b_descriptor, int accumulate) {
  static_assert(kCount == 32 || kCount == 64, "tiles are 64 or 128 columns wide");
  if constexpr (kCount == 32 && kIsBf16<T>)
    MARBLE_WGMMA_SS("64", "bf16", "1", MARBLE_NAMES32, "32", "33", "34", MARBLE_ACC32, d);
  else if constexpr (kCount == 32)
    MARBLE_WGMMA_SS("64", "f16", "1", MARBLE_NAMES32, "32", "33", "34", MARBLE_ACC32, d);
  else if constexpr (kIsBf16<T>)
    MARBLE_WGMMA_SS("128", "bf16", "1", MARBLE_NAMES64, "64", "65", "66", MARBLE_ACC64, d);
  else
    MARBLE_WGMMA_SS("128", "f16", "1", MARBLE_NAMES64, "64", "65", "66", MARBLE_ACC64, d);
}

/// A from registers, B transposed from shared memory; always accumulates.
template <typename T, int kCount>
__device__ __forceinline__ void wgmma_registers(float (&d)[kCount], const std::uint32_t* a,
                                                std::uint64_t b_descriptor) {
  static_assert(kCount == 32 || kCount == 64 || kCount == 128, "outputs are 64, 128 or 256 columns wide");
  if constexpr (kCount == 32 && kIsBf16<T>)
    MARBLE_WGMMA_RS("64", "bf16", MARBLE_NAMES32, "32", "33", "34", "35", "36", MARBLE_ACC32, d);
  else if constexpr (kCount == 32)
    MARBLE_WGMMA_RS("64", "f16", MARBLE_NAMES32, "32", "33", "34", "35", "36", MARBLE_ACC32, d);
  else if constexpr (kCount == 64 && kIsBf16<T>)
    MARBLE_WGMMA_RS("128", "bf16", MARBLE_NAMES64, "64", "65", "66", "67", "68", MARBLE_ACC64, d);
  else if constexpr (kCount == 64)
    MARBLE_WGMMA_RS("128", "f16", MARBLE_NAMES64, "64", "65", "66", "67", "68", MARBLE_ACC64, d);
  else if constexpr (kIsBf16<T>)
    MARBLE_WGMMA_RS("256", "bf16", MARBLE_NAMES128, "128", "129", "130", "131", "132", MARBLE_ACC128, d);
  else
    MARBLE_WGMMA_RS("256", "f16", MARBLE_NAMES128, "128", "129", "130", "131", "132", MARBLE_ACC128, d);
}

#undef MARBLE_ACC8
#undef MARBLE_ACC16
#undef MARBLE_ACC32
#undef MARBLE_ACC64
#undef MARBLE_ACC128
#undef MARBLE_NAMES16
#undef MARBLE_NAMES32
#undef MARBLE_NAMES64
#undef MARBLE_NAMES128
#undef MARBLE_WGMMA_SS
#undef MARBLE_WGMMA_RS

}  // namespace marble::cuda

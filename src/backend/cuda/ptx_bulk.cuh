// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// PTX for what the Hopper kernels move beyond tiles: states, rows of statistics, fragments, sums into global memory.

#include "backend/cuda/ptx.cuh"

namespace marble::cuda {

/// threadIdx.x, read anew each time: what derives from it need not stay in registers over a loop.
__device__ __forceinline__ unsigned thread_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// Copies `bytes` contiguous bytes (a multiple of 16) into shared memory; completes on `barrier`.
__device__ __forceinline__ void bulk_load(void* target, const void* source, std::uint32_t bytes,
                                          std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(target)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/// Asks for `bytes` contiguous bytes (a multiple of 16) in L2.
__device__ __forceinline__ void bulk_prefetch(const void* source, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes));
}

/// Ordinary writes to shared memory before this are seen by wgmma and the copy engine after it.
__device__ __forceinline__ void fence_shared_for_copy_engine() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Stores four 8 x 8 matrices of 16-bit elements, each transposed; lane i gives the address of row i % 8 of matrix
/// i / 8 as it is stored.
__device__ __forceinline__ void store_matrices_transposed(void* row, const std::uint32_t* fragments) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(fragments[0]), "r"(fragments[1]), "r"(fragments[2]), "r"(fragments[3])
               : "memory");
}

__device__ __forceinline__ void store_matrices(void* row, const std::uint32_t* fragments) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(fragments[0]), "r"(fragments[1]), "r"(fragments[2]), "r"(fragments[3])
               : "memory");
}

/// Adds `bytes` bytes of floats in shared memory into global memory; belongs to the thread's open bulk group.
__device__ __forceinline__ void bulk_reduce_add(float* target, const float* source, std::uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(target),
               "r"(shared_address(source)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until this thread's bulk groups have read their sources.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Waits until this thread's bulk groups have arrived in memory.
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// A counter in global memory; what others wrote before they passed on the turn that it says is then seen.
__device__ __forceinline__ std::int32_t read_turn(const std::int32_t* counter) {
  std::int32_t now;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  return now;
}

__device__ __forceinline__ void wait_turn(const std::int32_t* counter, std::int32_t turn) {
  while (read_turn(counter) != turn) {
  }
}

/// What this thread wrote before, or saw written, comes first; the copy engine's additions too, once `bulk_wait` has
/// returned. They need the release: without one the next multiprocessor's additions now and then come before some.
__device__ __forceinline__ void pass_turn(std::int32_t* counter, std::int32_t turn) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(turn) : "memory");
}

/// The copy engine's accesses after this come after a turn that has been read before it.
__device__ __forceinline__ void fence_turn_for_copy_engine() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Adds four floats into 16-byte aligned global memory, in no given order among threads.
__device__ __forceinline__ void reduce_add(float* target, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(target), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
#else
  atomicAdd(target, a);
  atomicAdd(target + 1, b);
  atomicAdd(target + 2, c);
  atomicAdd(target + 3, d);
#endif
}

__device__ __forceinline__ void reduce_add(float* target, float a, float b) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(target), "f"(a), "f"(b) : "memory");
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Products of tiles in shared memory by warps, with mma.sync: what the kernels for any GPU from sm_80 on are made of.
// Rows of a tile are 16-byte chunks, swizzled: chunk c of a row that is r modulo 8 lies at c ^ r, so that chunks of
// eight rows that lie in one column fall into different banks.

#include "backend/cuda/params.hpp"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/ptx_bulk.cuh"

namespace marble::cuda {

/// Element offset of a chunk in a tile whose rows are `kPitch` elements long.
template <int kPitch>
__device__ __forceinline__ unsigned swizzled(unsigned row, unsigned chunk) {
  return row * kPitch + (chunk ^ (row % 8)) * 8;
}

/// One lane's view of fragments in a tile. A chunk that is further by bits which no place of the lane sets differs by
/// an exclusive or, so one address serves all fragments.
template <int kPitch>
class LaneAddress {
 public:
  __device__ __forceinline__ LaneAddress(const void* tile, unsigned row, unsigned chunk)
      : address_(shared_address(tile) + swizzled<kPitch>(row, chunk) * 2) {}

  /// Rows and chunks further, known at compile time; `rows` is a multiple of 8.
  __device__ __forceinline__ std::uint32_t at(int rows, int chunks) const {
    const auto inside = static_cast<std::uint32_t>(chunks % 8 * 16);
    return (address_ ^ inside) + static_cast<std::uint32_t>(rows * kPitch * 2 + chunks / 8 * 128);
  }

 private:
  std::uint32_t address_;
};

/// Lanes' addresses for loads of four 8 x 8 matrices at (row, chunk), in the order in which fragments want them: `down`
/// a column of two and then the column right of it, `across` a row of two and then the row below.
///   A operand: down from its rows, or across and transposed from its columns.
///   B operand: across from its columns, or down and transposed from its rows.
template <int kPitch>
__device__ __forceinline__ LaneAddress<kPitch> matrices_down(const void* tile, unsigned row, unsigned chunk) {
  const unsigned lane = thread_index() % 32;
  return {tile, row + lane % 16, chunk + lane / 16};
}

template <int kPitch>
__device__ __forceinline__ LaneAddress<kPitch> matrices_across(const void* tile, unsigned row, unsigned chunk) {
  const unsigned lane = thread_index() % 32;
  return {tile, row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2};
}

/// sums (+)= A B over steps of 16: kAtoms x 16 rows by kCount / 8 x 16 columns. `load_b(fragment, step, group)` loads
/// 16 columns, one group before their product. `load_a(fragments, step, group)` is called for each group of the
/// step before `step`, and is to have loaded all by the last; work that it does besides runs beside the products.
template <typename T, int kSteps, bool kClears, int kAtoms, int kCount, typename LoadA, typename LoadB>
__device__ __forceinline__ void multiply_tiles(float (&sums)[kAtoms][kCount], const LoadA& load_a,
                                               const LoadB& load_b) {
  constexpr int kGroups = kCount / 8;
  std::uint32_t a[2][kAtoms][4], b[2][4];
  load_b(b[0], 0, 0);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) load_a(a[0], 0, group);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int place = step * kGroups + group;
      const int next = place + 1;
      if (next < kSteps * kGroups) load_b(b[next % 2], next / kGroups, next % kGroups);
      if (step + 1 < kSteps) load_a(a[(step + 1) % 2], step + 1, group);
      const std::uint32_t(&columns)[4] = b[place % 2];
#pragma unroll
      for (int atom = 0; atom < kAtoms; ++atom) {
        float* target = &sums[atom][8 * group];
        const std::uint32_t(&rows)[4] = a[step % 2][atom];
        if (kClears && step == 0) {
          multiply<T>(target, rows, columns[0], columns[1]);
          multiply<T>(target + 4, rows, columns[2], columns[3]);
        } else {
          multiply_accumulate<T>(target, rows, columns[0], columns[1]);
          multiply_accumulate<T>(target + 4, rows, columns[2], columns[3]);
        }
      }
    }
  }
}

/// Copies rows [row, row + kRows) of a head; rows and columns beyond the tensor become zeros. `is_aligned`: its rows
/// can be read 16 bytes at a time, asynchronously.
template <int kRows, int kDim, int kThreads, typename T>
__device__ __forceinline__ void load_rows(T* tile, const StridedRows& tensor, int head, int row, int valid_rows,
                                          int head_dim, bool is_aligned) {
  constexpr unsigned kChunks = kDim / 8;
  constexpr int kStep = kThreads / kChunks;  // rows at a time
  static_assert(kRows % kStep == 0);
  const unsigned thread = thread_index();
  const int column = static_cast<int>(thread % kChunks * 8);
  const int tile_row = static_cast<int>(thread / kChunks);
  const T* source =
      static_cast<const T*>(tensor.data) + head * tensor.head_stride + (row + tile_row) * tensor.row_stride + column;
  const auto target = [&](int i) { return tile + swizzled<kDim>(tile_row + i * kStep, thread % kChunks); };
  const std::int64_t step = kStep * tensor.row_stride;
  if (is_aligned && row + kRows <= valid_rows && head_dim == kDim) {
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      copy_async_16(target(i), source, true);
      source += step;
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kRows / kStep; ++i) {
    const bool is_valid = row + tile_row + i * kStep < valid_rows && column < head_dim;
    const T* chunk = is_valid ? source + i * step : static_cast<const T*>(tensor.data);
    if (is_aligned) {
      copy_async_16(target(i), chunk, is_valid);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) target(i)[c] = is_valid && column + c < head_dim ? chunk[c] : T(0.f);
    }
  }
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/tensor_ops.hpp"
#include "backend/cuda/with_dtype.cuh"

#include <cstdint>

namespace marble::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct View {
  T* data;
  std::int64_t row_stride;
  std::int64_t head_stride;

  explicit View(const TensorView& view)
      : data(static_cast<T*>(view.data)), row_stride(view.row_stride), head_stride(view.head_stride) {}

  __device__ T& at(std::int64_t row, int head, int column) const {
    return data[row * row_stride + head * head_stride + column];
  }
};

/// One warp a row and head.
template <typename T>
__global__ void row_products_kernel(View<const T> out, View<const T> dout, View<float> delta, std::int64_t count,
                                    int heads, int dim) {
  const std::int64_t index = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (index >= count) return;
  const std::int64_t row = index / heads;
  const auto head = static_cast<int>(index % heads);
  float sum = 0.f;
  for (int column = static_cast<int>(threadIdx.x % 32); column < dim; column += 32)
    sum += static_cast<float>(out.at(row, head, column)) * static_cast<float>(dout.at(row, head, column));
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (threadIdx.x % 32 == 0) delta.at(row, head, 0) = sum;
}

constexpr int kRowsPerCta = 4;

/// The same, 16 bytes at a time: kLanes lanes a row and head, a CTA a few rows. Indices within a CTA fit 32 bits:
/// 64-bit divisions would cost a thread as much time as its loads.
template <typename T, int kLanes>
__global__ void row_products_wide_kernel(View<const T> out, View<const T> dout, View<float> delta,
                                         std::int64_t valid_rows, int heads, int dim) {
  constexpr int kValues = 16 / static_cast<int>(sizeof(T));
  const std::int64_t first_row = std::int64_t{blockIdx.x} * kRowsPerCta;
  const int column = static_cast<int>(threadIdx.x % kLanes) * kValues;
  const bool has_values = column < dim;
  const int count = static_cast<int>(min(valid_rows - first_row, std::int64_t{kRowsPerCta})) * heads;
  const int padded_count = (count + 31) / 32 * 32;  // whole warps take part in the sums
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) / kLanes; i < padded_count; i += kThreads / kLanes) {
    const std::int64_t row = first_row + i / heads;
    const int head = i % heads;
    uint4 a = {}, b = {};
    if (i < count && has_values) {
      a = __ldcs(reinterpret_cast<const uint4*>(&out.at(row, head, column)));
      b = *reinterpret_cast<const uint4*>(&dout.at(row, head, column));
    }
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kValues; ++j)
      sum +=
          static_cast<float>(reinterpret_cast<const T*>(&a)[j]) * static_cast<float>(reinterpret_cast<const T*>(&b)[j]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (i < count && column == 0) delta.at(row, head, 0) = sum;
  }
}

/// True when rows are 16-bit elements that can be read 16 bytes at a time, by at most a warp each.
bool reads_wide(const TensorView& view) {
  return size_of(view.dtype) == 2 && view.dim <= 256 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         view.row_stride % 8 == 0 && view.head_stride % 8 == 0 && view.dim % 8 == 0;
}

template <typename T, int kLanes>
void launch_wide_row_products(const TensorView& out, const TensorView& dout, const TensorView& delta,
                              std::int64_t valid_rows, cudaStream_t stream) {
  const auto num_ctas = static_cast<unsigned>((valid_rows + kRowsPerCta - 1) / kRowsPerCta);
  row_products_wide_kernel<T, kLanes><<<num_ctas, kThreads, 0, stream>>>(
      View<const T>(out), View<const T>(dout), View<float>(delta), valid_rows, out.heads, out.dim);
}

}  // namespace

void row_products(const TensorView& out, const TensorView& dout, const TensorView& delta, std::int64_t valid_rows,
                  cudaStream_t stream) {
  if (out.dtype != dout.dtype || delta.dtype != DType::fp32)
    fail_internal("row products of tensors of different dtypes");
  const std::int64_t count = valid_rows * out.heads;
  if (count == 0) return;
  constexpr int kWarps = kThreads / 32;
  const auto num_ctas = static_cast<unsigned>((count + kWarps - 1) / kWarps);
  with_dtype(out.dtype, [&]<typename T>(T) {
    if (reads_wide(out) && reads_wide(dout)) {
      if (out.dim <= 64) return launch_wide_row_products<T, 8>(out, dout, delta, valid_rows, stream);
      if (out.dim <= 128) return launch_wide_row_products<T, 16>(out, dout, delta, valid_rows, stream);
      return launch_wide_row_products<T, 32>(out, dout, delta, valid_rows, stream);
    }
    row_products_kernel<<<num_ctas, kThreads, 0, stream>>>(View<const T>(out), View<const T>(dout), View<float>(delta),
                                                           count, out.heads, out.dim);
  });
  check_cuda(cudaGetLastError(), "computing row products of output and gradient");
}

}  // namespace marble::cuda

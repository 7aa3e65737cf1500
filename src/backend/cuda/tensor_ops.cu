// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/tensor_ops.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
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

template <typename Source, typename Target>
__global__ void copy_elements_kernel(View<const Source> source, View<Target> target, std::int64_t count, int heads,
                                     int dim, bool add) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const auto column = static_cast<int>(i % dim);
    const auto head = static_cast<int>(i / dim % heads);
    const std::int64_t row = i / dim / heads;
    Target& element = target.at(row, head, column);
    const auto value = static_cast<float>(source.at(row, head, column));
    element = static_cast<Target>(add ? static_cast<float>(element) + value : value);
  }
}

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

template <typename Fn>
void with_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::fp32:
      return fn(float{});
    case DType::bf16:
      return fn(__nv_bfloat16{});
    case DType::fp16:
      return fn(__half{});
  }
  fail_internal("dtype out of range");
}

}  // namespace

void copy_elements(const TensorView& source, const TensorView& target, bool add, cudaStream_t stream) {
  if (source.rows != target.rows || source.heads != target.heads || source.dim != target.dim)
    fail_internal("copy of tensor elements between different shapes");
  const std::int64_t count = source.rows * source.heads * source.dim;
  if (count == 0) return;
  constexpr std::int64_t kMostCtas = 132 * 16;
  const auto num_ctas = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostCtas));
  with_dtype(source.dtype, [&]<typename Source>(Source) {
    with_dtype(target.dtype, [&]<typename Target>(Target) {
      copy_elements_kernel<<<num_ctas, kThreads, 0, stream>>>(View<const Source>(source), View<Target>(target), count,
                                                              source.heads, source.dim, add);
    });
  });
  check_cuda(cudaGetLastError(), "copying tensor elements");
}

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

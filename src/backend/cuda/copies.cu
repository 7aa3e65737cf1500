// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Copies and casts between strided views, bound by memory: a thread has four loads in flight, each as wide as both
// views allow. One launch makes copies of any sizes, strides and dtypes side by side, so that an exchange packs, or
// unpacks, all its tensors for all peers at once.

#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/tensor_ops.hpp"
#include "backend/cuda/with_dtype.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace marble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;
constexpr std::uint32_t kChunk = kThreads * kLoads;  // vectors that a CTA moves

/// Two views of one shape, as lines of vectors. A line is all there is, or a row, or a head of a row: as much as lies
/// without gaps in both.
struct Lines {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::int64_t source_row = 0, source_head = 0, target_row = 0, target_head = 0;  // bytes from one to the next
  std::int64_t count = 0;                                                         // vectors in all
  std::uint32_t heads = 0;                                                        // lines of a row
  std::uint32_t vectors = 0;                                                      // of a line
};

template <typename T, int kValues>
struct alignas(sizeof(T) * kValues) Vector {
  T values[kValues];
};

template <typename Target, typename Source>
__device__ Target converted(Source value) {
  if constexpr (std::is_same_v<Source, Target>)
    return value;
  else
    return static_cast<Target>(static_cast<float>(value));
}

/// Vectors [chunk * kChunk, (chunk + 1) * kChunk). Within a chunk indices fit 32 bits: 64-bit divisions would cost a
/// thread as much time as its loads.
template <typename Source, typename Target, int kValues, bool kAdd>
__device__ void move_chunk(const Lines& lines, std::uint32_t chunk) {
  const std::int64_t first = std::int64_t{chunk} * kChunk;
  const auto left = static_cast<std::uint32_t>(min(lines.count - first, std::int64_t{kChunk}));
  const auto first_line = static_cast<std::uint32_t>(first / lines.vectors);
  const auto first_vector = static_cast<std::uint32_t>(first % lines.vectors);
  Vector<Source, kValues> loaded[kLoads];
  Vector<Target, kValues>* targets[kLoads];
  Vector<Target, kValues> before[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const std::uint32_t index = i * kThreads + threadIdx.x;
    if (index >= left) break;
    const std::uint32_t ahead = first_vector + index, line = first_line + ahead / lines.vectors;
    const std::int64_t row = line / lines.heads, head = line % lines.heads, vector = ahead % lines.vectors;
    const std::byte* source = lines.source + row * lines.source_row + head * lines.source_head;
    std::byte* target = lines.target + row * lines.target_row + head * lines.target_head;
    loaded[i] = reinterpret_cast<const Vector<Source, kValues>*>(source)[vector];
    targets[i] = reinterpret_cast<Vector<Target, kValues>*>(target) + vector;
    if constexpr (kAdd) before[i] = *targets[i];
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (i * kThreads + threadIdx.x >= left) break;
    Vector<Target, kValues> stored;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      stored.values[j] = converted<Target>(loaded[i].values[j]);
      if constexpr (kAdd) stored.values[j] += before[i].values[j];
    }
    *targets[i] = stored;
  }
}

/// Bytes of a vector, which is copied or added to fp32 sums.
enum class Operation : std::uint32_t { copy_16, copy_8, copy_4, copy_2, add_16, add_4 };

struct Part {
  Lines lines;
  std::uint32_t first_chunk = 0;  // of the launch
  Operation operation = Operation::copy_16;
};

/// As many as fit the 4 KiB of a kernel's arguments.
struct Parts {
  static constexpr int kMost = 48;
  Part part[kMost];
  int count = 0;
};

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Parts parts) {
  int p = 0;
  while (p + 1 < parts.count && parts.part[p + 1].first_chunk <= blockIdx.x) ++p;
  const Part& part = parts.part[p];
  const std::uint32_t chunk = blockIdx.x - part.first_chunk;
  switch (part.operation) {
    case Operation::copy_16:
      return move_chunk<uint4, uint4, 1, false>(part.lines, chunk);
    case Operation::copy_8:
      return move_chunk<uint2, uint2, 1, false>(part.lines, chunk);
    case Operation::copy_4:
      return move_chunk<std::uint32_t, std::uint32_t, 1, false>(part.lines, chunk);
    case Operation::copy_2:
      return move_chunk<std::uint16_t, std::uint16_t, 1, false>(part.lines, chunk);
    case Operation::add_16:
      return move_chunk<float, float, 4, true>(part.lines, chunk);
    case Operation::add_4:
      return move_chunk<float, float, 1, true>(part.lines, chunk);
  }
}

template <typename Source, typename Target, int kValues>
__global__ void __launch_bounds__(kThreads) cast_kernel(const __grid_constant__ Lines lines) {
  move_chunk<Source, Target, kValues, false>(lines, blockIdx.x);
}

/// The views' lines, in elements.
struct Shape {
  std::int64_t rows, heads, line;
};

Shape shape_of(const TensorView& source, const TensorView& target) {
  const std::int64_t row = std::int64_t{source.heads} * source.dim, all = source.rows * row;
  const auto has_dense_rows = [](const TensorView& view) { return view.heads <= 1 || view.head_stride == view.dim; };
  if (source.contiguous() && target.contiguous() && all <= std::numeric_limits<std::uint32_t>::max())
    return {1, 1, all};
  if (has_dense_rows(source) && has_dense_rows(target)) return {source.rows, 1, row};
  return {source.rows, source.heads, source.dim};
}

/// True when vectors of `elements` tile the view's lines, and lie where they may.
bool takes_vectors(const TensorView& view, const Shape& shape, std::int64_t elements) {
  return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(elements * size_of(view.dtype)) ==
             0 &&
         shape.line % elements == 0 && (shape.rows == 1 || view.row_stride % elements == 0) &&
         (shape.heads == 1 || view.head_stride % elements == 0);
}

Lines lines_of(const TensorView& source, const TensorView& target, const Shape& shape, std::int64_t elements) {
  Lines lines;
  lines.source = static_cast<const std::byte*>(source.data);
  lines.target = static_cast<std::byte*>(target.data);
  lines.source_row = source.row_stride * size_of(source.dtype);
  lines.source_head = source.head_stride * size_of(source.dtype);
  lines.target_row = target.row_stride * size_of(target.dtype);
  lines.target_head = target.head_stride * size_of(target.dtype);
  lines.count = shape.rows * shape.heads * (shape.line / elements);
  lines.heads = static_cast<std::uint32_t>(shape.heads);
  lines.vectors = static_cast<std::uint32_t>(shape.line / elements);
  return lines;
}

std::uint32_t num_chunks(const Lines& lines) {
  return static_cast<std::uint32_t>((lines.count + kChunk - 1) / kChunk);
}

void check_shapes(const TensorView& source, const TensorView& target) {
  if (source.rows != target.rows || source.heads != target.heads || source.dim != target.dim)
    fail_internal("copy of tensor elements between different shapes");
  if (source.rows * source.heads > std::numeric_limits<std::uint32_t>::max())
    fail_internal("copy of more rows and heads than 32 bits count");
}

Part part_of(const Copy& copy) {
  check_shapes(copy.source, copy.target);
  if (copy.source.dtype != copy.target.dtype) fail_internal("copy of tensor elements between different dtypes");
  if (copy.add && copy.target.dtype != DType::fp32) fail_internal("sum that is not kept in fp32");
  const Shape shape = shape_of(copy.source, copy.target);
  std::int64_t bytes = 16;
  const auto fits = [&] {
    const std::int64_t elements = bytes / size_of(copy.source.dtype);
    return takes_vectors(copy.source, shape, elements) && takes_vectors(copy.target, shape, elements);
  };
  while (bytes > size_of(copy.source.dtype) && !fits()) bytes /= copy.add ? 4 : 2;
  Part part;
  part.lines = lines_of(copy.source, copy.target, shape, bytes / size_of(copy.source.dtype));
  if (copy.add)
    part.operation = bytes == 16 ? Operation::add_16 : Operation::add_4;
  else
    part.operation = bytes == 16  ? Operation::copy_16
                     : bytes == 8 ? Operation::copy_8
                     : bytes == 4 ? Operation::copy_4
                                  : Operation::copy_2;
  return part;
}

template <typename Source, typename Target>
void launch_cast(const TensorView& source, const TensorView& target, cudaStream_t stream) {
  constexpr int kWide = 4;
  const Shape shape = shape_of(source, target);
  const bool is_wide = takes_vectors(source, shape, kWide) && takes_vectors(target, shape, kWide);
  const Lines lines = lines_of(source, target, shape, is_wide ? kWide : 1);
  const auto kernel = is_wide ? cast_kernel<Source, Target, kWide> : cast_kernel<Source, Target, 1>;
  kernel<<<num_chunks(lines), kThreads, 0, stream>>>(lines);
  check_cuda(cudaGetLastError(), "casting tensor elements");
}

}  // namespace

void copy_elements(std::span<const Copy> copies, cudaStream_t stream) {
  Parts parts;
  std::uint32_t chunks = 0;
  const auto launch = [&] {
    if (chunks == 0) return;
    copy_kernel<<<chunks, kThreads, 0, stream>>>(parts);
    check_cuda(cudaGetLastError(), "copying tensor elements");
    parts.count = 0;
    chunks = 0;
  };
  for (const Copy& copy : copies) {
    if (copy.target.bytes() == 0) continue;
    Part& part = parts.part[parts.count++] = part_of(copy);
    part.first_chunk = chunks;
    chunks += num_chunks(part.lines);
    if (parts.count == Parts::kMost) launch();
  }
  launch();
}

void cast_elements(const TensorView& source, const TensorView& target, cudaStream_t stream) {
  check_shapes(source, target);
  if (source.bytes() == 0) return;
  if (source.dtype == target.dtype) {
    const Copy copy{source, target};
    return copy_elements({&copy, 1}, stream);
  }
  with_dtype(source.dtype, [&]<typename Source>(Source) {
    with_dtype(target.dtype, [&]<typename Target>(Target) {
      if constexpr (!std::is_same_v<Source, Target>) launch_cast<Source, Target>(source, target, stream);
    });
  });
}

}  // namespace marble::cuda

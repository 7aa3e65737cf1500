// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The CPU backend's row-by-row operations: everything that is not attention.

#include "backend/cpu/backend_cpu.hpp"
#include "base/parallel.hpp"

#include "marble/error.hpp"

#include <cstring>

namespace marble::cpu {
namespace {

std::byte* element(const TensorView& view, std::int64_t row, std::int32_t head) {
  return static_cast<std::byte*>(view.data) + (row * view.row_stride + head * view.head_stride) * size_of(view.dtype);
}

std::int64_t row_elements(const TensorView& view) {
  return std::int64_t{view.heads} * view.dim;
}

void require_same_shape(const TensorView& source, const TensorView& target) {
  require(source.rows == target.rows && source.heads == target.heads && source.dim == target.dim,
          "copy from [{}, {}, {}] to [{}, {}, {}]", source.rows, source.heads, source.dim, target.rows, target.heads,
          target.dim);
}

}  // namespace

void CpuBackend::for_each_row(std::int64_t rows, std::int64_t elements_per_row,
                              const std::function<void(std::int64_t)>& fn) {
  constexpr std::int64_t kElementsPerTask = 1 << 16;
  const std::int64_t chunk = std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, elements_per_row));
  parallel_for((rows + chunk - 1) / chunk, num_threads_, [&](std::int64_t c) {
    for (std::int64_t row = c * chunk; row < std::min(rows, (c + 1) * chunk); ++row) fn(row);
  });
}

void CpuBackend::prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                                  std::int64_t valid_rows) {
  require(out.dtype == dout.dtype, "output is {} and its gradient {}; they must be equal", to_string(out.dtype),
          to_string(dout.dtype));
  for_each_row(valid_rows, row_elements(out), [&](std::int64_t row) {
    for (std::int32_t head = 0; head < out.heads; ++head)
      *reinterpret_cast<float*>(element(delta, row, head)) =
          kernels_.dot(element(out, row, head), element(dout, row, head), out.dtype, out.dim);
  });
}

void CpuBackend::finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) {
  const RankPlanHeader& header = plan.header();
  const std::int64_t dim = header.head_dim;
  for_each_row(dq.rows, row_elements(dq), [&](std::int64_t row) {
    const std::int64_t block = row / header.block;
    for (std::int32_t head = 0; head < dq.heads; ++head) {
      const std::int64_t tile = (block * header.local_heads + head) * header.block;
      const auto* source = static_cast<const float*>(dq_accumulator) + (tile + row % header.block) * dim;
      if (row < header.valid_query_rows)
        kernels_.convert(source, DType::fp32, element(dq, row, head), dq.dtype, dim);
      else
        std::memset(element(dq, row, head), 0, static_cast<std::size_t>(dim * size_of(dq.dtype)));
    }
  });
}

void CpuBackend::cast(const TensorView& source, const TensorView& target) {
  require_same_shape(source, target);
  for_each_row(source.rows, row_elements(source), [&](std::int64_t row) {
    for (std::int32_t head = 0; head < source.heads; ++head)
      kernels_.convert(element(source, row, head), source.dtype, element(target, row, head), target.dtype, source.dim);
  });
}

void CpuBackend::copy(std::span<const Copy> copies) {
  for (const Copy& copy : copies) {
    require(copy.source.dtype == copy.target.dtype, "copy from {} to {}", to_string(copy.source.dtype),
            to_string(copy.target.dtype));
    copy.add ? add(copy.source, copy.target) : cast(copy.source, copy.target);
  }
}

void CpuBackend::add(const TensorView& source, const TensorView& target) {
  require(target.dtype == DType::fp32, "sums are kept in fp32, not in {}", to_string(target.dtype));
  require_same_shape(source, target);
  for_each_row(target.rows, row_elements(target), [&](std::int64_t row) {
    for (std::int32_t head = 0; head < target.heads; ++head) {
      const auto* from = reinterpret_cast<const float*>(element(source, row, head));
      auto* to = reinterpret_cast<float*>(element(target, row, head));
      for (std::int32_t i = 0; i < target.dim; ++i) to[i] += from[i];
    }
  });
}

}  // namespace marble::cpu

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Views of token-major tensors [rows, heads, dim], as flash-attn lays them out. A view owns nothing. Strides count
// elements; the last axis is always dense. A per-row scalar (LSE, delta) is a view with dim 1.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace marble {

enum class DType : std::uint8_t { fp32, bf16, fp16 };

[[nodiscard]] constexpr std::int64_t size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : 2;
}
[[nodiscard]] std::string_view to_string(DType dtype);
/// Throws InvalidArgument unless `name` is fp32, bf16 or fp16.
[[nodiscard]] DType parse_dtype(std::string_view name);

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  std::int64_t row_stride = 0;   // elements from one row to the next
  std::int64_t head_stride = 0;  // elements from one head to the next

  /// The rows [row, row + num_rows) and heads [head, head + num_heads) of this view.
  [[nodiscard]] TensorView block(std::int64_t row, std::int64_t num_rows, std::int32_t head,
                                 std::int32_t num_heads) const;
  /// True when the elements form one gap-free range of bytes.
  [[nodiscard]] bool contiguous() const {
    return rows == 0 || ((heads <= 1 || head_stride == dim) && (rows <= 1 || row_stride == std::int64_t{heads} * dim));
  }
  [[nodiscard]] std::int64_t bytes() const { return rows * heads * dim * size_of(dtype); }
};

/// A dense [rows, heads, dim] view of `data`.
[[nodiscard]] TensorView dense_view(void* data, DType dtype, std::int64_t rows, std::int32_t heads, std::int32_t dim);

}  // namespace marble

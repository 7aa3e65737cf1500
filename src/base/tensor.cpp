// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/tensor.hpp"

#include "marble/error.hpp"

namespace marble {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
  }
  throw InternalError("dtype out of range");
}

DType parse_dtype(std::string_view name) {
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    if (name == to_string(dtype)) return dtype;
  throw InvalidArgument(fmt::format("dtype '{}' is not one of fp32, bf16, fp16", name));
}

TensorView TensorView::block(std::int64_t row, std::int64_t num_rows, std::int32_t head, std::int32_t num_heads) const {
  ensure(
      row >= 0 && num_rows >= 0 && row + num_rows <= rows && head >= 0 && num_heads >= 0 && head + num_heads <= heads,
      "block rows [{}, {}) heads [{}, {}) leaves a tensor of {} rows and {} heads", row, row + num_rows, head,
      head + num_heads, rows, heads);
  TensorView view = *this;
  view.data = static_cast<std::byte*>(data) + (row * row_stride + head * head_stride) * size_of(dtype);
  view.rows = num_rows;
  view.heads = num_heads;
  return view;
}

TensorView dense_view(void* data, DType dtype, std::int64_t rows, std::int32_t heads, std::int32_t dim) {
  return {data, dtype, rows, heads, dim, std::int64_t{heads} * dim, dim};
}

}  // namespace marble

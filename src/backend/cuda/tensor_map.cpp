// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/tensor_map.hpp"

#include "backend/cuda/cuda_error.hpp"

#include "marble/error.hpp"

#include <algorithm>

namespace marble::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// Found through the runtime, so that the library loads where no driver is installed.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
               "looking for cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess || entry == nullptr)
      throw BackendError("the CUDA driver has no cuTensorMapEncodeTiled; Hopper kernels need driver 12.0 or newer");
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

std::int64_t stride_bytes(std::int64_t stride, DType dtype) {
  return stride * size_of(dtype);
}

}  // namespace

CUtensorMap make_tensor_map(const TensorView& view, std::int64_t valid_rows, int box_rows) {
  constexpr std::int64_t kColumns = 64;
  const auto type = view.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  // An axis of one entry is never stepped over, but its stride must still be legal.
  const auto stride = [&](std::int64_t elements, std::int64_t extent) {
    return static_cast<cuuint64_t>(extent > 1 ? stride_bytes(elements, view.dtype) : 16);
  };
  const std::int64_t rows = std::max<std::int64_t>(valid_rows, 1);
  const cuuint64_t extents[3] = {static_cast<cuuint64_t>(view.dim), static_cast<cuuint64_t>(rows),
                                 static_cast<cuuint64_t>(view.heads)};
  const cuuint64_t strides[2] = {stride(view.row_stride, rows), stride(view.head_stride, view.heads)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(kColumns), static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_tiled()(&map, type, 3, view.data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw BackendError(
        fmt::format("cuTensorMapEncodeTiled failed with code {} for {} rows x {} heads x {}, strides {} and {}",
                    static_cast<int>(result), rows, view.heads, view.dim, view.row_stride, view.head_stride));
  return map;
}

}  // namespace marble::cuda

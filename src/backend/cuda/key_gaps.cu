// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/bound_plan.hpp"
#include "backend/cuda/cuda_error.hpp"

namespace marble::cuda {
namespace {

struct Rows {
  std::uint16_t* data;  // any 16-bit type: its zero is all bits clear
  std::int64_t row_stride, head_stride;
};

/// One CTA a gap and head; threads along the head dimension, the fastest axis.
__global__ void clear_gaps_kernel(Rows k, Rows v, const RowGap* gaps, std::int32_t dim) {
  const RowGap gap = gaps[blockIdx.x];
  for (const Rows& rows : {k, v}) {
    std::uint16_t* head = rows.data + blockIdx.y * rows.head_stride;
    for (std::int64_t i = threadIdx.x; i < (gap.end - gap.begin) * dim; i += blockDim.x)
      head[(gap.begin + i / dim) * rows.row_stride + i % dim] = 0;
  }
}

Rows rows_of(const TensorView& view) {
  return {static_cast<std::uint16_t*>(view.data), view.row_stride, view.head_stride};
}

}  // namespace

void clear_key_gaps(const BoundWork& work, const TensorView& k, const TensorView& v, cudaStream_t stream) {
  if (work.num_gaps == 0) return;
  const dim3 grid(static_cast<unsigned>(work.num_gaps), static_cast<unsigned>(k.heads));
  clear_gaps_kernel<<<grid, 256, 0, stream>>>(rows_of(k), rows_of(v), work.gaps, k.dim);
  check_cuda(cudaGetLastError(), "clearing the pads between keys");
}

}  // namespace marble::cuda

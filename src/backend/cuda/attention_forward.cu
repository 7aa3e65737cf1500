// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/attention_epilogue.cuh"
#include "backend/cuda/attention_forward.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/tile_dims.hpp"

namespace marble::cuda {
namespace {

/// One CTA a (head, item): every thread merges the fragments it would hold in the attention kernel.
template <typename T, int kDim>
__global__ void __launch_bounds__(256) attention_merge_kernel(const __grid_constant__ ForwardParams params) {
  const int index = blockIdx.x;
  const Unit place = unit_at(index, params.num_items, 1);
  const Item item = params.items[place.item];
  const FragmentOwner owner = {static_cast<int>(threadIdx.x) / 128, static_cast<int>(threadIdx.x) % 128};
  ForwardParams whole = params;
  whole.num_splits = 1;
  const UnitOutput unit = unit_output(whole, index, place.head, item.block, item.flags);

  float output[kDim / 2] = {};
  SoftmaxState softmax = empty_softmax_state();
  if (!unit.starts_empty) {
    load_output_state(unit.state<kDim>(), owner, output);
    softmax = load_softmax_state<kDim>(unit.state<kDim>(), owner);
  }
  for (int split = 0; split < params.num_splits; ++split) {
    const auto* partial = reinterpret_cast<const float4*>(
        params.partials + (std::int64_t{index} * params.num_splits + split) * kStateFloats<kDim>);
    float addend[kDim / 2];
    load_output_state(partial, owner, addend);
    const SoftmaxState other = load_softmax_state<kDim>(partial, owner);
    float rescale[2], weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float row_max = fmaxf(softmax.row_max[r], other.row_max[r]);
      const float subtracted = max_exponent(row_max, params.exponent_scale);
      rescale[r] = exp2_approx(__fmul_rn(softmax.row_max[r], params.exponent_scale) - subtracted);
      weight[r] = exp2_approx(__fmul_rn(other.row_max[r], params.exponent_scale) - subtracted);
      softmax.row_max[r] = row_max;
      softmax.row_sum[r] = softmax.row_sum[r] * rescale[r] + other.row_sum[r] * weight[r];
    }
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) output[i] = output[i] * rescale[(i / 2) % 2] + addend[i] * weight[(i / 2) % 2];
  }
  if (unit.finishes)
    write_output<T, kDim, false>(params, unit, owner, output, softmax);
  else
    store_state(unit.state<kDim>(), owner, output, softmax);
}

}  // namespace

std::int64_t state_slot_bytes(int dim) {
  return (std::int64_t{kBlock} * dim + 2 * 128 * 4) * std::int64_t{sizeof(float)};
}

int forward_tile_keys(int dim) {
  return dim > 128 ? 64 : 128;
}

void launch_attention_forward_sm90(const ForwardParams& params, const ForwardTensorMaps& maps, DType dtype, int dim,
                                   int num_ctas, cudaStream_t stream) {
  dispatch(dtype, dim, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
    launch_forward_sm90<T, kDim>(params, maps, num_ctas, stream);
  });
}

void launch_attention_forward_sm80(const ForwardParams& params, DType dtype, int dim, cudaStream_t stream) {
  dispatch(dtype, dim, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
    launch_forward_sm80<T, kDim>(params, stream);
  });
}

void launch_attention_merge(const ForwardParams& params, DType dtype, int dim, cudaStream_t stream) {
  const int num_ctas = params.num_heads * params.num_items;
  dispatch(dtype, dim, [&]<typename T, int kDim>(T, std::integral_constant<int, kDim>) {
    attention_merge_kernel<T, kDim><<<num_ctas, 256, 0, stream>>>(params);
  });
  check_cuda(cudaGetLastError(), "launching the merge of split keys");
}

}  // namespace marble::cuda

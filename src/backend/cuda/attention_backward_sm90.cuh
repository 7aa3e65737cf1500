// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Backward attention on Hopper, over a rank plan's items. One persistent CTA per multiprocessor; a unit keeps a tile of
// keys and values in shared memory and their gradients in registers, and meets its query tiles one after the other.
// Three warpgroups: a loader with warps that build masks, and two consumers. Gradients of keys have one owner, unless
// units are split; gradients of queries are summed in fp32 in global memory, by everyone who meets them.

#include "backend/cuda/attention_backward.hpp"
#include "backend/cuda/backward_consumer_sm90.cuh"
#include "backend/cuda/backward_consumer_wide_sm90.cuh"
#include "backend/cuda/backward_loader_sm90.cuh"
#include "backend/cuda/cuda_error.hpp"

namespace marble::cuda {

template <typename T, int kDim>
__global__ void __launch_bounds__(384, 1)
    attention_backward_sm90_kernel(const __grid_constant__ BackwardParams params,
                                   const __grid_constant__ BackwardTensorMaps maps) {
  using Traits = BackwardTraits<kDim>;
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<BackwardShared<T, kDim>*>(shared_bytes);
  if (threadIdx.x == 0) init_backward_barriers(shared);
  __syncthreads();

  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that ptxas knows it, and what follows, uniform
  if (group == 0) {
    lower_registers<Traits::kLoaderRegisters>();
    const int warp = threadIdx.x / 32;
    const int adders = num_adders<Traits>(params);
    if (warp == 0) {
      if (elect_one()) BackwardLoader<T, kDim>(shared, params, maps).run();
    } else if (warp <= kFeedingWarps - adders) {
      build_backward_masks(shared, params, kFeedingWarps - adders);
    } else if (elect_one()) {
      if constexpr (Traits::kStagesDq)
        add_dq_parts(shared, params, DqMessages<T, kDim>(shared, kFeedingWarps - thread_index() / 32, adders));
      else if (params.order.query_turns != nullptr)
        keep_dq_turns(shared, params);
    }
  } else {
    raise_registers<Traits::kConsumerRegisters>();
    if constexpr (Traits::kWide)
      WideBackwardConsumer<T, kDim>(shared, params, group - 1).run();
    else if (group <= Traits::kDqMakers)
      BackwardConsumer<T, kDim, true>(shared, params, group - 1).run();
    else
      BackwardConsumer<T, kDim, false>(shared, params, group - 1).run();
  }
}

template <typename T, int kDim>
void launch_backward_sm90(const BackwardParams& params, const BackwardTensorMaps& maps, int num_ctas,
                          cudaStream_t stream) {
  const auto kernel = attention_backward_sm90_kernel<T, kDim>;
  constexpr int kSharedBytes = sizeof(BackwardShared<T, kDim>);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "reserving shared memory for the attention backward kernel");
  kernel<<<num_ctas, BackwardTraits<kDim>::kThreads, kSharedBytes, stream>>>(params, maps);
  check_cuda(cudaGetLastError(), "launching the attention backward kernel");
}

}  // namespace marble::cuda

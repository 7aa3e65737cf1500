// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/attention_backward_sm80.cuh"

template void marble::cuda::launch_backward_sm80<__half, 64>(const BackwardParams&, int, cudaStream_t);

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/attention_forward_sm80.cuh"

template void marble::cuda::launch_forward_sm80<__half, 64>(const ForwardParams&, cudaStream_t);

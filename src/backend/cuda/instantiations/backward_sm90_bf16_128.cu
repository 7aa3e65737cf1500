// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/attention_backward_sm90.cuh"

template void marble::cuda::launch_backward_sm90<__nv_bfloat16, 128>(const BackwardParams&, const BackwardTensorMaps&,
                                                                     int, cudaStream_t);

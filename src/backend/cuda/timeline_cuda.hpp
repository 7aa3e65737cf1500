// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "marble/backend.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace marble::cuda {

/// Events on streams. Point times count from one moment at which the stream was idle and the host's clock was read.
class CudaTimeline final : public Timeline {
 public:
  explicit CudaTimeline(cudaStream_t stream);
  ~CudaTimeline() override;
  CudaTimeline(const CudaTimeline&) = delete;
  CudaTimeline& operator=(const CudaTimeline&) = delete;

  std::int64_t mark() override { return mark(stream_); }
  std::int64_t mark(void* stream) override;
  [[nodiscard]] std::vector<std::int64_t> nanoseconds() override;

 private:
  cudaStream_t stream_;
  cudaEvent_t origin_ = nullptr;
  std::int64_t origin_ns_ = 0;
  std::vector<cudaEvent_t> events_;
};

}  // namespace marble::cuda

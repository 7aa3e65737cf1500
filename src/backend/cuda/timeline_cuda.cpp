// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/timeline_cuda.hpp"

#include "backend/cuda/cuda_error.hpp"

#include <chrono>
#include <cmath>

namespace marble::cuda {
namespace {

cudaEvent_t record_event(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "making an event");
  check_cuda(cudaEventRecord(event, stream), "recording an event");
  return event;
}

}  // namespace

CudaTimeline::CudaTimeline(cudaStream_t stream) : stream_(stream) {
  check_cuda(cudaStreamSynchronize(stream), "waiting for the GPU");
  origin_ = record_event(stream);
  check_cuda(cudaEventSynchronize(origin_), "waiting for an event");
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  origin_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

CudaTimeline::~CudaTimeline() {
  cudaEventDestroy(origin_);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

std::int64_t CudaTimeline::mark(void* stream) {
  events_.push_back(record_event(static_cast<cudaStream_t>(stream)));
  return static_cast<std::int64_t>(events_.size()) - 1;
}

std::vector<std::int64_t> CudaTimeline::nanoseconds() {
  std::vector<std::int64_t> points;
  for (cudaEvent_t event : events_) {
    float ms = 0.0F;
    check_cuda(cudaEventSynchronize(event), "waiting for an event");
    check_cuda(cudaEventElapsedTime(&ms, origin_, event), "reading an event");
    points.push_back(origin_ns_ + std::llround(double{ms} * 1e6));
  }
  return points;
}

}  // namespace marble::cuda

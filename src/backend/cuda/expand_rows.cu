// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/bound_plan.hpp"
#include "backend/cuda/cuda_error.hpp"

namespace marble::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void expand_intervals_kernel(const Segment* segments, std::int64_t num_segments, const VisibleRule* rules,
                                        const Segment* query_segments, std::int64_t num_query_segments,
                                        std::int64_t num_rows, RowInterval* intervals) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= num_rows) return;
  RowInterval interval;
  const std::int64_t index = segment_of_row(segments, num_segments, row);
  if (index < num_segments && segments[index].rule >= 0) {
    const Segment segment = segments[index];
    interval = visible_rows(segment, row - segment.row, rules[segment.rule], query_segments, num_query_segments);
  }
  intervals[row] = interval;
}

__global__ void expand_tracks_kernel(const Segment* segments, std::int64_t num_segments, std::int64_t num_rows,
                                     RowTracks* tracks) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= num_rows) return;
  RowTracks token = {-1, -1, -1, 0};
  const std::int64_t index = segment_of_row(segments, num_segments, row);
  if (index < num_segments) {
    const Segment& segment = segments[index];
    const TokenTracks found = tracks_of(segment, row - segment.row);
    token = {found.sample, found.segment, found.noise, static_cast<std::int32_t>(found.position)};
  }
  tracks[row] = token;
}

unsigned num_ctas(std::int64_t num_rows) {
  return static_cast<unsigned>((num_rows + kThreads - 1) / kThreads);
}

}  // namespace

void expand_intervals(const Segment* segments, std::int64_t num_segments, const VisibleRule* rules,
                      const Segment* query_segments, std::int64_t num_query_segments, std::int64_t num_rows,
                      RowInterval* intervals, cudaStream_t stream) {
  if (num_rows == 0) return;
  expand_intervals_kernel<<<num_ctas(num_rows), kThreads, 0, stream>>>(segments, num_segments, rules, query_segments,
                                                                       num_query_segments, num_rows, intervals);
  check_cuda(cudaGetLastError(), "expanding a plan's visible ranges");
}

void expand_tracks(const Segment* segments, std::int64_t num_segments, std::int64_t num_rows, RowTracks* tracks,
                   cudaStream_t stream) {
  if (num_rows == 0) return;
  expand_tracks_kernel<<<num_ctas(num_rows), kThreads, 0, stream>>>(segments, num_segments, num_rows, tracks);
  check_cuda(cudaGetLastError(), "expanding a plan's tracks");
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank plan made ready for a GPU: its arrays uploaded, and what partial blocks are tested against expanded there.

#include "backend/cuda/device_memory.hpp"
#include "backend/cuda/params.hpp"

#include "marble/backend.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

namespace marble::cuda {

/// Pads before the last valid row: [begin, end).
struct RowGap {
  std::int64_t begin, end;
};

struct BoundWork {
  VisibilityArrays visibility;
  std::int64_t valid_key_rows = 0;  // up to the last valid one
  const RowGap* gaps = nullptr;     // [num_gaps] on the device
  std::int32_t num_gaps = 0;
  std::int64_t forward_tiles = 0;
  std::int64_t backward_tiles = 0;
  std::int64_t longest_backward = 0;        // tiles of an item
  int num_splits = 1;                       // CTAs that share one forward item's keys
  const std::int32_t* by_length = nullptr;  // on the device: positions of backward items, longest first
};

/// planned_order.hpp's ranks of one work, on the device.
struct BoundRanks {
  DeviceBuffer ranks, item_begin;
};

class CudaBoundPlan final : public BoundPlan {
 public:
  /// `uploads` must outlive it.
  CudaBoundPlan(const RankPlan& plan, int num_multiprocessors, Uploads& uploads);

  [[nodiscard]] const RankPlan& plan() const { return plan_; }
  [[nodiscard]] QueryPath backward_path() const { return backward_path_; }
  [[nodiscard]] const BoundWork& work(std::int32_t index) const { return works_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const Item* items() const { return items_.as<Item>(); }
  [[nodiscard]] const Run* runs() const { return runs_.as<Run>(); }
  [[nodiscard]] const std::int32_t* head_map() const { return head_map_.as<std::int32_t>(); }
  /// The planned order of a work's backward items, uploaded when it is first asked for.
  [[nodiscard]] const BoundRanks& backward_ranks(std::int32_t index) const;
  /// The head map turned round: query heads in the order of their key heads, and where each key head's begin.
  [[nodiscard]] const std::int32_t* group_begin() const { return groups_.as<std::int32_t>(); }
  [[nodiscard]] const std::int32_t* group_heads() const { return group_begin() + plan_.header().local_kv_heads + 1; }

 private:
  void expand();

  Uploads& uploads_;
  RankPlan plan_;
  QueryPath backward_path_;
  DeviceBuffer items_, runs_, head_map_, groups_, query_tracks_;
  std::vector<DeviceBuffer> expansions_;
  std::vector<BoundWork> works_;
  mutable std::map<std::int32_t, BoundRanks> backward_ranks_;  // few ask for them
};

[[nodiscard]] constexpr std::int64_t num_blocks(std::int64_t rows) {
  return (rows + kBlock - 1) / kBlock;
}

/// CTAs that share each item of a work when there are fewer items than multiprocessors. A function of plan and machine
/// alone: results never depend on what ran before.
[[nodiscard]] int forward_splits(const RankPlan& plan, const Work& work, int num_multiprocessors);

/// key_gaps.cu: zeros in the pads between a work's keys and values. Kernels read these as one extent, and zero times a
/// NaN would be NaN.
void clear_key_gaps(const BoundWork& work, const TensorView& k, const TensorView& v, cudaStream_t stream);

// expand_rows.cu: one entry per row of whole blocks; pads get an empty interval, or sample -1.
void expand_intervals(const Segment* segments, std::int64_t num_segments, const VisibleRule* rules,
                      const Segment* query_segments, std::int64_t num_query_segments, std::int64_t num_rows,
                      RowInterval* intervals, cudaStream_t stream);
void expand_tracks(const Segment* segments, std::int64_t num_segments, std::int64_t num_rows, RowTracks* tracks,
                   cudaStream_t stream);

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The two passes of a rank plan and where the workspace of each lies. Nothing outlives a pass (every layer shares one
// bound plan), so both passes lie over each other in one allocation.

#include "marble/backend.hpp"
#include "marble/rank_plan.hpp"
#include "marble/tensor.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace marble {

enum class Pass { forward, backward };

[[nodiscard]] std::string_view to_string(Pass pass);
[[nodiscard]] std::string_view to_string(Tensor tensor);
[[nodiscard]] std::span<const Step> steps(const RankPlan& plan, Pass pass);

[[nodiscard]] constexpr std::int32_t index_of(Tensor tensor) {
  return static_cast<std::int32_t>(tensor);
}

/// True for the caller's tensors: workspace is everything else, and delta, which the executor makes.
[[nodiscard]] constexpr bool is_callers(std::int32_t buffer) {
  return buffer < kNumTensors && buffer != index_of(Tensor::delta);
}

/// A dense view of a buffer of the plan at `data`.
[[nodiscard]] TensorView buffer_view(const RankPlan& plan, std::int32_t buffer, DType dtype, void* data);

/// True for buffers that live in the workspace: neither the caller's nor in saved memory.
[[nodiscard]] bool is_workspace(const RankPlan& plan, std::int32_t buffer);

/// Where each part begins, in bytes from the start of the workspace, or, for what peers write to, of the landing:
/// memory that the transport has reserved, or else the workspace's end.
struct PassLayout {
  static constexpr std::int64_t kAbsent = -1;
  std::vector<std::int64_t> buffers;  // kAbsent: the caller's, saved, landing, or not used by this pass
  std::int64_t carried = 0;           // forward: the backend's state; backward: its dQ accumulator
  std::int64_t end = 0;

  std::vector<std::int64_t> landing;  // buffers; kAbsent: not among them
  std::int64_t fetch_staging = 0;     // in the landing; one fetch and one return are under way at a time
  std::int64_t give_back_staging = 0;
  std::int64_t landing_bytes = 0;
};

struct WorkspaceLayout {
  std::int64_t lse_pads = 0;  // a dense [pad rows, heads] of -inf, written once
  PassLayout forward, backward;
  std::int64_t bytes = 0;           // without the landing, if the transport reserves it
  std::int64_t landing_bytes = 0;   // for the transport to reserve; 0 if it does not
  std::vector<std::int64_t> saved;  // buffers in the caller's saved memory; kAbsent: in none
  std::int64_t saved_bytes = 0;

  [[nodiscard]] const PassLayout& of(Pass pass) const { return pass == Pass::forward ? forward : backward; }
};

inline constexpr std::int64_t kWorkspaceAlignment = 256;

[[nodiscard]] constexpr std::int64_t workspace_align(std::int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

/// The part of a layout that concerns saved memory.
void lay_out_saved(const RankPlan& plan, DType dtype, WorkspaceLayout& layout);

/// Throws InvalidArgument when a pass uses a tensor that its call does not bring.
[[nodiscard]] WorkspaceLayout lay_out_workspace(const RankPlan& plan, DType dtype, const Backend& backend,
                                                bool reserves);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exact distributed attention of one layer: the executor of rank plans. Every rank of the mesh calls the same functions
// in the same order. Tensors are this rank's rows in the plan's order (rank_positions), [rows, heads, head_dim], any
// strides; rows beyond the rank's tokens are pads, which are never read and come back as zeros (LSE: as -inf).

#include "marble/backend.hpp"
#include "marble/plan.hpp"
#include "marble/rank_plan.hpp"
#include "marble/tensor.hpp"
#include "marble/transport.hpp"

#include <cstdint>
#include <memory>
#include <string_view>

namespace marble {

/// q, out: [rows, heads, head_dim]; k, v: [rows, kv_heads, head_dim], all of one dtype; lse: fp32 [rows, heads, 1].
/// saved: saved_bytes() of the backend's memory that this call writes and its backward reads; null when the plan keeps
/// nothing.
struct ForwardCall {
  TensorView q, k, v;
  TensorView out, lse;
  void* saved = nullptr;
};

/// dout is like out; dq like q; dk, dv like k. All are of q's dtype. delta_shift is optional (no data: none) and like
/// lse; it is added to delta = rowsum(out * dout). A loss that uses LSE passes minus its gradient by LSE.
struct BackwardCall {
  TensorView q, k, v, out, lse, dout;
  TensorView dq, dk, dv;
  TensorView delta_shift = {};
  void* saved = nullptr;
};

/// Told of passes ("layer 0 forward") and their steps as the executor asks for them, on its thread; for traces.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void begin_pass(std::string_view pass) = 0;
  virtual void begin_step(std::int64_t step) = 0;
  virtual void end_step() = 0;
  virtual void end_pass() = 0;
};

/// A rank plan bound to a backend and a transport, with its workspace: made once per plan, used by every layer. The
/// rank plan, backend and transport must outlive it.
class BoundAttention {
 public:
  /// Checks that the backend covers the plan and that all ranks bring the same plan, dtype and options (`agree`), then
  /// takes workspace from the backend. Throws InvalidArgument before any exchange, on every rank when one refuses.
  BoundAttention(const RankPlan& plan, DType dtype, const AttentionOptions& options, Backend& backend,
                 Transport& transport);
  ~BoundAttention();
  BoundAttention(const BoundAttention&) = delete;
  BoundAttention& operator=(const BoundAttention&) = delete;

  /// `observer` outlives it; null: none.
  void observe(StepObserver* observer);

  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Rows without a legal key get output 0 and LSE -inf. Throws InvalidArgument on a tensor of the wrong shape or dtype,
/// before any exchange.
void attention_forward(BoundAttention& attention, const ForwardCall& call);

/// Gradients of forward's inputs, summed in fp32 wherever sums cross blocks, steps or ranks, and cast once.
void attention_backward(BoundAttention& attention, const BackwardCall& call);

/// Memory that each layer keeps from forward to backward, in bytes: what the plan's `keep` names. 256-byte aligned.
[[nodiscard]] std::int64_t saved_bytes(const RankPlan& plan, DType dtype);

/// Workspace that a BoundAttention of this plan takes, in bytes.
[[nodiscard]] std::int64_t workspace_bytes(const RankPlan& plan, DType dtype, const Backend& backend);

}  // namespace marble

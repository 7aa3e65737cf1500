// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The seam between a rank plan and the device that computes it. A backend owns no tensors: all memory is the caller's,
// including the workspace whose size it states. Calls on one Backend object come from one thread; each rank has its
// own.

#include "marble/rank_plan.hpp"
#include "marble/tensor.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace marble {

/// What the model fixes for every call. Scores are softcap * tanh(s / softcap) with s = scale * q.k when softcap > 0.
struct AttentionOptions {
  double softmax_scale = 0.0;
  double softcap = 0.0;  // 0: none
  /// Gradients repeat to the bit from run to run, because every sum has a planned order; a backend may be slower for
  /// it. Outputs always repeat.
  bool deterministic = false;
};

/// A rank plan made ready for a device (arrays uploaded, per-key row intervals expanded). Made once per plan.
class BoundPlan {
 public:
  virtual ~BoundPlan() = default;
};

/// Tensors of one forward work. Queries and outputs are [query_rows, local_heads, dim]; keys and values
/// [key_rows, local_kv_heads, dim]; lse fp32 [query_rows, local_heads, 1]. Rows beyond the valid ones are never read
/// and never written; but where keys of several ranks follow one another, a backend may clear the pads between them.
struct ForwardTensors {
  TensorView q, k, v, out, lse;
  void* state = nullptr;  // state_bytes(): carried fp32 output, max and sum, in the backend's own order
};

/// Tensors of one backward work. dk and dv are fp32 and added into; dK is complete (softmax scale included).
struct BackwardTensors {
  TensorView q, k, v, dout, lse, delta, dk, dv;
  void* dq_accumulator = nullptr;  // dq_accumulator_bytes(): carried fp32 dQ, in the backend's own order
};

/// target = source, or in fp32 target += source, for views of one shape and dtype.
struct Copy {
  TensorView source, target;
  bool add = false;
};

/// Points that a backend's work passes, in time; for benchmarks and traces.
class Timeline {
 public:
  virtual ~Timeline() = default;
  /// A point behind everything that the backend was asked for so far; numbered from 0.
  virtual std::int64_t mark() = 0;
  /// The same behind everything on `stream`, a stream of the backend's kind (cuda: a cudaStream_t).
  virtual std::int64_t mark(void* stream) = 0;
  /// When each point was passed, in nanoseconds of this host's steady clock. Waits until all have been.
  [[nodiscard]] virtual std::vector<std::int64_t> nanoseconds() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Throws InvalidArgument, naming the value and the nearest supported one, when this backend cannot run the plan with
  /// this dtype and these options.
  virtual void check_supported(const RankPlan& plan, DType dtype, const AttentionOptions& options) const = 0;

  [[nodiscard]] virtual std::unique_ptr<BoundPlan> bind(const RankPlan& plan) = 0;
  [[nodiscard]] virtual std::int64_t state_bytes(const RankPlan& plan) const = 0;
  [[nodiscard]] virtual std::int64_t dq_accumulator_bytes(const RankPlan& plan) const = 0;

  // Device memory for tensors and workspace, and copies to and from the host.
  [[nodiscard]] virtual void* allocate(std::int64_t bytes) = 0;
  virtual void free(void* data) noexcept = 0;
  virtual void copy_from_host(void* target, const void* source, std::int64_t bytes) = 0;
  virtual void copy_to_host(void* target, const void* source, std::int64_t bytes) = 0;

  /// Work `work` of the plan: attends, carrying the state across works; items flagged last write out and lse.
  virtual void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
                       const AttentionOptions& options) = 0;
  /// Work `work` of the plan against the final lse: adds into dk, dv and the dQ accumulator.
  virtual void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                        const AttentionOptions& options) = 0;

  /// delta = rowsum(out * dout) in fp32, over `valid_rows` rows.
  virtual void prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                                std::int64_t valid_rows) = 0;
  /// Casts the dQ accumulator into dq; rows beyond the valid ones become zero.
  virtual void finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) = 0;
  /// Casts (rounding once) source into target of the same shape.
  virtual void cast(const TensorView& source, const TensorView& target) = 0;
  /// All of the copies at once, in no order: no target overlaps another copy's target or source.
  virtual void copy(std::span<const Copy> copies) = 0;
  virtual void zero(void* data, std::int64_t bytes) = 0;

  /// Waits until everything asked for so far has been done.
  virtual void synchronize() = 0;

  /// Unless overridden, the host's clock: right for a backend whose calls return when their work is done.
  [[nodiscard]] virtual std::unique_ptr<Timeline> make_timeline();

  /// Block pairs computed since construction (forward, and backward), one head counted once.
  [[nodiscard]] virtual std::int64_t tiles_computed() const = 0;

  /// True when probabilities and score gradients are rounded to the dtype of the tensors before they are multiplied, as
  /// tensor cores take them; false when they stay fp32. What to expect of either: docs/numerics.md.
  [[nodiscard]] virtual bool rounds_products() const = 0;
};

/// `num_threads` 0: all cores.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend(int num_threads = 0);

/// One rank's backend by its name: "cpu" with `num_threads`, or "cuda" on GPU `device` with a stream of its own. Throws
/// InvalidArgument on any other name, and like make_cuda_backend.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::string_view name, int device, int num_threads);

}  // namespace marble

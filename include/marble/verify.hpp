// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Proof that a layout's distributed attention equals one device's: random tensors, the planned run over all ranks, the
// same code on one rank, and a dense fp64 reference that knows the mask rule and nothing of plans. Every buffer starts
// as NaN. Bounds and their reasons: docs/numerics.md.

#include "marble/backend.hpp"
#include "marble/layout.hpp"
#include "marble/plan.hpp"
#include "marble/tensor.hpp"
#include "marble/trace.hpp"
#include "marble/transport.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace marble {

/// Makes one rank's backend, on that rank's own thread (make_cpu_backend fits).
using BackendFactory = std::function<std::unique_ptr<Backend>(int num_threads)>;

/// Called on the thread of rank 0: fraction of the whole in [0, 1], and what is being done.
using VerifyProgress = std::function<void(double fraction, std::string_view label)>;

struct VerifyOptions {
  std::int32_t layer = 0;
  DType dtype = DType::bf16;
  AttentionOptions attention;  // softmax_scale 0: 1 / sqrt(head_dim)
  std::uint64_t seed = 0;
  bool forward_only = false;
  int threads = 0;  // of this process, shared by its ranks; 0: all cores
  PlanOptions plan;
  BackendFactory backend = make_cpu_backend;
  std::optional<int> reference_gpu;                      // the fp64 reference runs on this GPU; none: on the CPU
  TransportOptions transport{std::chrono::minutes(10)};  // local ranks only
  VerifyProgress progress;
  TraceSink trace;  // of the distributed run; none: nothing is recorded
};

/// Relative Frobenius errors against dense fp64: of the distributed run, of one rank, and the first over the second
/// (1 when both are 0). `rounding` is the error of the fp64 result rounded once to the dtype; of dq and dk, of the
/// exact gradients that follow from an output rounded once, which is what any backward pass is given.
struct VerifyError {
  double error = 0.0;
  double single_rank_error = 0.0;
  double ratio = 1.0;
  double rounding = 0.0;
};

/// What all ranks together did in forward (and again in backward), counted by backends and transports.
struct VerifyCounts {
  std::int64_t tiles = 0;  // block pairs, one head counted once per rank that computed it
  std::int64_t backward_tiles = 0;
  double received_tokens = 0.0;  // key tokens in forward; a token of 1/U of the heads counts 1/U
};

struct VerifyResult {
  VerifyError out, dq, dk, dv;  // gradients: only unless forward_only
  double lse_error = 0.0;       // largest absolute difference
  double single_rank_lse_error = 0.0;
  VerifyCounts ran;
  VerifyCounts planned;     // by the plan's own numbers
  std::vector<Mode> modes;  // that the layout holds, in the order of Mode
  std::int64_t legal_pairs = 0;
  bool pass = false;
  std::vector<std::string> failures;  // one line for each bound that was missed
};

/// Runs all ranks as threads of this process. Throws InvalidArgument on impossible options.
[[nodiscard]] VerifyResult verify_local(const Layout& layout, const Model& model, const Mesh& mesh,
                                        const VerifyOptions& options);

/// This process is rank transport.rank(). Rank 0 gathers and judges; the other ranks return nothing once their part is
/// done.
[[nodiscard]] std::optional<VerifyResult> verify_rank(const Layout& layout, const Model& model, const Mesh& mesh,
                                                      const VerifyOptions& options, Transport& transport);

}  // namespace marble

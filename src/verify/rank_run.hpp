// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One run of the product's own code over the ranks of a mesh, its results gathered on rank 0 in pack order.

#include "verify/dense_reference.hpp"

#include "marble/attention.hpp"
#include "marble/verify.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace marble {

/// Results in pack order, widened to fp32. Rows that no rank wrote are NaN.
struct RunResult {
  std::vector<float> out, lse, dq, dk, dv;
  VerifyCounts ran;
  VerifyCounts rank_plans;        // the same numbers, as the rank plans state them
  std::int64_t pads_written = 0;  // pad elements that came back as anything but zero (LSE: -inf)
  bool rounds_products = false;   // the backend's word
};

/// Random inputs, exact in `dtype`, the same for equal seeds.
[[nodiscard]] DenseInputs random_inputs(std::int64_t tokens, const HeadShape& shape, DType dtype, std::uint64_t seed,
                                        int threads = 1);

/// What the plan itself says that all ranks together will do.
[[nodiscard]] VerifyCounts planned_counts(const Plan& plan, const VerifyOptions& options);

struct RunRequest {
  const Plan& plan;
  const DenseInputs& inputs;
  const VerifyOptions& options;  // attention.softmax_scale is set
  int threads_per_rank = 1;
  VerifyProgress progress;  // fraction of this run, on rank 0
  TraceSink trace = {};     // of this run
};

/// Collective over the ranks of `transport`. The result is on rank 0, the others get nothing.
[[nodiscard]] std::optional<RunResult> run_rank(const RunRequest& request, Transport& transport);

/// All ranks as threads of this process.
[[nodiscard]] RunResult run_ranks(const RunRequest& request);

}  // namespace marble

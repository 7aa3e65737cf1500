// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One attention problem run through a backend's seam, forward and backward, and through the fp64 oracle.

#include "backend/brute_plan.hpp"
#include "oracle/dense.hpp"

#include "marble/backend.hpp"
#include "marble/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace marble::testing {

/// How tensors lie in memory: gap-free; with gaps after rows and heads; or heads outermost (a transposed view).
enum class Strides { dense, gaps, heads_outermost };

struct AttentionCase {
  BruteSpec spec;
  DType dtype = DType::fp32;
  AttentionOptions options;
  Strides strides = Strides::dense;
  std::uint32_t seed = 1;
  double gradient_start = 0.0;  // what dk and dv hold before the backward works add into them
};

/// Valid rows only, dense [row][head][dim] (lse [row][head]); keys are the works' keys one after another. As doubles,
/// which hold every dtype exactly: equal bits are equal doubles.
struct AttentionResult {
  std::vector<double> out, lse, dq, dk, dv;
  std::int64_t tiles = 0;
  double dq_size = 0.0, dk_size = 0.0;  // of the oracle: what rounding errors are relative to (oracle/dense.hpp)

  friend bool operator==(const AttentionResult&, const AttentionResult&) = default;
};

/// Inputs by canonical index, rounded to the dtype: the same token has the same values in every placement.
struct AttentionInputs {
  std::vector<double> q, k, v, dout;
};
[[nodiscard]] AttentionInputs make_inputs(const AttentionCase& problem);

/// Runs all works forward and backward. Every byte that is not a valid input starts as NaN; throws InternalError when
/// a pad, a gap or the memory round a tensor does not keep its bytes. `dq_sums`: takes the accumulator's bytes, before
/// the cast that hides most differences of a sum.
[[nodiscard]] AttentionResult run_attention(Backend& backend, const AttentionCase& problem,
                                            const AttentionInputs& inputs, std::vector<std::byte>* dq_sums = nullptr);

/// The oracle's answer. Its backward takes delta from `kept_out`, the rounded output that a training step keeps; when
/// that is empty, from its own exact output.
[[nodiscard]] AttentionResult run_oracle(const AttentionCase& problem, const AttentionInputs& inputs,
                                         const std::vector<double>& kept_out = {});

/// Tiles that the plan of this case lists, forward and backward.
[[nodiscard]] std::int64_t planned_tiles(const AttentionCase& problem);

/// Every value rounded to `dtype` once.
[[nodiscard]] std::vector<double> rounded(const std::vector<double>& values, DType dtype);

/// |a - b| / max(|b|, size) in the Frobenius norm; 0 when a and b are equal.
[[nodiscard]] double relative_error(const std::vector<double>& a, const std::vector<double>& b, double size = 0.0);
/// Largest |a - b|, equal infinities counting 0.
[[nodiscard]] double max_error(const std::vector<double>& a, const std::vector<double>& b);

/// The tokens of `layout` in canonical order.
[[nodiscard]] std::vector<TokenTracks> canonical_tokens(const Layout& layout, Canonical canonical);

/// One rank that holds all tokens, one work over all keys, one head of dimension `dim`.
[[nodiscard]] AttentionCase whole_case(const Layout& layout, Canonical canonical, const MaskRule& rule,
                                       std::int32_t dim, std::int32_t block);

/// The same problem with its keys dealt to `count` works, `granule` keys at a time.
[[nodiscard]] AttentionCase split_works(const AttentionCase& problem, std::int64_t count, std::int64_t granule);

}  // namespace marble::testing

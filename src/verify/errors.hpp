// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures of error and the bounds that a verification passes by (docs/numerics.md gives the reasons).

#include "verify/dense_reference.hpp"
#include "verify/rank_run.hpp"

#include "marble/verify.hpp"

#include <span>

namespace marble {

inline constexpr double kMaxRatio = 1.02;  // 16-bit: distributed error over one rank's
// 16-bit: one rank's error over rounding the fp64 result once. A backend that rounds the operands of products may add
// one unit roundoff to it.
inline constexpr double kMaxOverRounding = 1.1;
inline constexpr double kMaxFp32Error = 5e-6;  // fp32: relative Frobenius, distributed and one rank
inline constexpr double kMaxLseError = 2e-5;   // any dtype: largest absolute difference of an LSE

/// Relative Frobenius error. Where the truth is zero up to cancellation (its norm below 1e-9 of `natural`), `natural`
/// takes its place: a gradient that cancels exactly has no relative error of its own.
[[nodiscard]] double relative_error(std::span<const float> values, std::span<const double> truth, double natural,
                                    int threads = 1);

/// Error of `exact` rounded once to `dtype`; `exact` is the truth, or what follows exactly from a stored output.
template <typename T>
[[nodiscard]] double rounding_error(std::span<const T> exact, std::span<const double> truth, DType dtype,
                                    double natural, int threads = 1);

/// Largest absolute difference; 0 where both are -inf, and infinity where one is not finite alone.
[[nodiscard]] double largest_difference(std::span<const float> values, std::span<const double> truth);

/// Fills in the errors and failures of `result`, whose counts are set, and decides whether it passes.
void judge(const RunResult& distributed, const RunResult& single, const DenseResult& truth, const DenseInputs& inputs,
           const VerifyOptions& options, VerifyResult& result);

}  // namespace marble

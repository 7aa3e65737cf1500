// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counts the cases of this program and keeps their largest errors, to say so at its end.

#include "marble/plan.hpp"
#include "marble/verify.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

namespace marble::exactness {

class CasesRun {
 public:
  static CasesRun& instance() {
    static CasesRun cases;
    return cases;
  }

  void add(const Plan& plan, DType dtype, const VerifyResult& result) {
    ++count_;
    keep_largest(dtype, result);
    std::int64_t samples = 0;
    for (std::int64_t s = 0; s < plan.layout.num_samples(); ++s) {
      std::int64_t tokens = 0;
      for (const Span& span : plan.layout.sample(s)) tokens += span.length;
      samples += tokens > 0 ? 1 : 0;
    }
    const std::int64_t fewest = *std::ranges::min_element(plan.ring_tokens);
    large_ += samples >= 3 && (fewest + plan.block - 1) / plan.block >= 5 ? 1 : 0;
  }

  /// Nothing when no case was run.
  void print() const {
    if (count_ == 0) return;
    fmt::print("exactness: {} cases, {} with 5 or more blocks a rank and 3 or more samples\n", count_, large_);
    fmt::print(
        "largest: 16-bit error over one rank's {:.6f}, one rank's over rounding once {:.6f}; fp32 error {:.2g}; "
        "lse {:.2g}\n",
        ratio_, over_rounding_, fp32_error_, lse_error_);
  }

 private:
  void keep_largest(DType dtype, const VerifyResult& result) {
    lse_error_ = std::max(lse_error_, result.lse_error);
    for (const VerifyError& error : {result.out, result.dq, result.dk, result.dv}) {
      if (dtype == DType::fp32) {
        fp32_error_ = std::max(fp32_error_, error.error);
      } else if (error.rounding > 0) {
        ratio_ = std::max(ratio_, error.ratio);
        over_rounding_ = std::max(over_rounding_, error.single_rank_error / error.rounding);
      }
    }
  }

  std::int64_t count_ = 0;
  std::int64_t large_ = 0;  // five or more blocks on every rank, three or more samples
  double ratio_ = 0.0, over_rounding_ = 0.0, fp32_error_ = 0.0, lse_error_ = 0.0;
};

}  // namespace marble::exactness

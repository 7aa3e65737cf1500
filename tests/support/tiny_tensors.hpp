// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The caller's tensors of a tiny plan, in host memory that starts as NaN.

#include "support/tiny_plan.hpp"

#include "marble/attention.hpp"
#include "marble/tensor.hpp"

#include <limits>
#include <list>
#include <vector>

namespace marble::test {

/// fp32 tensors; `strided` puts unused elements between heads and between rows.
class TinyTensors {
 public:
  explicit TinyTensors(bool strided = false) : strided_(strided) {}

  [[nodiscard]] TensorView make(std::int32_t heads, std::int32_t dim) {
    const std::int64_t head_stride = strided_ ? dim + 1 : dim;
    const std::int64_t row_stride = strided_ ? heads * head_stride + 3 : heads * head_stride;
    auto& memory = memory_.emplace_back(kTinyRows * row_stride, std::numeric_limits<float>::quiet_NaN());
    return {memory.data(), DType::fp32, kTinyRows, heads, dim, row_stride, head_stride};
  }
  [[nodiscard]] ForwardCall forward() {
    return {make(kTinyHeads, kTinyDim), make(1, kTinyDim), make(1, kTinyDim), make(kTinyHeads, kTinyDim),
            make(kTinyHeads, 1)};
  }
  [[nodiscard]] BackwardCall backward() {
    const ForwardCall call = forward();
    return {call.q,
            call.k,
            call.v,
            call.out,
            call.lse,
            make(kTinyHeads, kTinyDim),
            make(kTinyHeads, kTinyDim),
            make(1, kTinyDim),
            make(1, kTinyDim)};
  }

 private:
  bool strided_;
  std::list<std::vector<float>> memory_;
};

[[nodiscard]] inline float element(const TensorView& view, std::int64_t row, std::int32_t head = 0,
                                   std::int32_t d = 0) {
  return static_cast<const float*>(view.data)[row * view.row_stride + head * view.head_stride + d];
}

}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention in fp64 over a whole pack, the truth that runs are measured against. It knows tracks and is_legal, and
// nothing of plans, canonical orders or visible ranges: a tile is left out only when is_legal is false for each of its
// pairs. O(tokens^2) for the mask, O(legal tiles) for the arithmetic.

#include "marble/backend.hpp"
#include "marble/layout.hpp"
#include "marble/mask.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace marble {

struct HeadShape {
  std::int32_t heads = 1;
  std::int32_t kv_heads = 1;
  std::int32_t head_dim = 1;
};

/// [tokens, heads, head_dim] (k, v: kv_heads), in pack order. Exact: 16-bit inputs are widened.
struct DenseInputs {
  std::vector<float> q, k, v, dout;
};

/// Shapes of the inputs; lse [tokens, heads]. A row without a legal key has output 0 and LSE -inf. A backward pass is
/// given the output that forward stored, so rounding it changes the gradients through delta = rowsum(out * dout);
/// dq_stored and dk_stored are the exact gradients that follow from the output rounded once to the inputs' dtype.
struct DenseResult {
  std::vector<double> out, lse, dq, dk, dv;
  std::vector<float> dq_stored, dk_stored;
};

struct DenseOptions {
  AttentionOptions attention;
  DType dtype = DType::fp32;
  bool backward = true;
  int threads = 1;
  std::function<void(double)> progress;  // fraction done, from the calling thread
};

[[nodiscard]] DenseResult dense_reference(const Layout& layout, const MaskRule& rule, const HeadShape& shape,
                                          const DenseInputs& inputs, const DenseOptions& options);

/// The same on GPU `device`, for packs that would take the CPU minutes. Throws InvalidArgument when this library was
/// built without CUDA.
[[nodiscard]] DenseResult dense_reference_cuda(const Layout& layout, const MaskRule& rule, const HeadShape& shape,
                                               const DenseInputs& inputs, const DenseOptions& options, int device);

}  // namespace marble

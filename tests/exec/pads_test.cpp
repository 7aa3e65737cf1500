// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Rows beyond a rank's tokens come back as zeros, and as -inf in the LSE, whatever the strides.

#include "support/recording.hpp"
#include "support/tiny_plan.hpp"
#include "support/tiny_tensors.hpp"

#include "marble/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace marble::test {
namespace {

void expect_pads(const TensorView& view, float expected) {
  for_each_element(view.block(kTinyTokens, kTinyRows - kTinyTokens, 0, view.heads),
                   [&](const std::byte* at) { EXPECT_EQ(load_element(at, view.dtype, 0), expected); });
}

class Pads : public testing::TestWithParam<bool> {};

TEST_P(Pads, ComeBackAsZeros) {
  run_local_ranks(2, {}, [&](Transport& transport) {
    Log log;
    const RankPlan plan = tiny_ring(transport.rank(), 2).make();
    RecordingBackend backend(log, transport.rank());
    BoundAttention attention(plan, DType::fp32, {.softmax_scale = 1.0}, backend, transport);
    TinyTensors tensors(GetParam());
    const ForwardCall forward = tensors.forward();
    attention_forward(attention, forward);
    expect_pads(forward.out, 0.0F);
    expect_pads(forward.lse, -std::numeric_limits<float>::infinity());
    EXPECT_FALSE(std::isnan(element(forward.out, kTinyTokens - 1)));

    const BackwardCall backward = tensors.backward();
    attention_backward(attention, backward);
    for (const TensorView& view : {backward.dq, backward.dk, backward.dv}) {
      expect_pads(view, 0.0F);
      EXPECT_GT(element(view, kTinyTokens - 1), 0.0F);
    }
  });
}

TEST_P(Pads, NothingBetweenTheElementsIsTouched) {
  run_local_ranks(1, {}, [&](Transport& transport) {
    Log log;
    const RankPlan plan = tiny_ring(0, 1).make();
    RecordingBackend backend(log, 0);
    BoundAttention attention(plan, DType::fp32, {.softmax_scale = 1.0}, backend, transport);
    TinyTensors tensors(true);
    const ForwardCall call = tensors.forward();
    attention_forward(attention, call);
    for (std::int64_t row = 0; row < kTinyRows; ++row)
      for (std::int32_t head = 0; head < kTinyHeads; ++head)
        EXPECT_TRUE(std::isnan(element(call.out, row, head, kTinyDim))) << "row " << row;
  });
}

INSTANTIATE_TEST_SUITE_P(DenseAndStrided, Pads, testing::Bool());

}  // namespace
}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// A loss that uses LSE shifts delta, on the rows that hold tokens only.

#include "support/recording.hpp"
#include "support/tiny_plan.hpp"
#include "support/tiny_tensors.hpp"

#include "marble/attention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace marble::test {
namespace {

/// Keeps the delta that the first work of a backward pass gets.
class DeltaBackend final : public RecordingBackend {
 public:
  using RecordingBackend::RecordingBackend;
  std::vector<float> delta;

  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    if (delta.empty())
      for_each_element(tensors.delta, [&](std::byte* at) { delta.push_back(load_element(at, DType::fp32, 0)); });
    RecordingBackend::backward(plan, work, tensors, options);
  }
};

std::vector<float> delta_of(bool shifted) {
  std::vector<float> delta;
  run_local_ranks(1, {}, [&](Transport& transport) {
    Log log;
    const RankPlan plan = tiny_ring(0, 1).make();
    DeltaBackend backend(log, 0);
    BoundAttention attention(plan, DType::fp32, {.softmax_scale = 1.0}, backend, transport);
    TinyTensors tensors;
    BackwardCall call = tensors.backward();
    if (shifted) {
      call.delta_shift = tensors.make(kTinyHeads, 1);
      for_each_element(call.delta_shift.block(0, kTinyTokens, 0, kTinyHeads),
                       [](std::byte* at) { store_element(at, DType::fp32, 0, 2.5F); });
    }
    attention_backward(attention, call);
    delta = backend.delta;
  });
  return delta;
}

TEST(DeltaShift, IsAddedToRowsThatHoldTokens) {
  const std::vector<float> plain = delta_of(false), shifted = delta_of(true);
  ASSERT_EQ(plain.size(), static_cast<std::size_t>(kTinyRows * kTinyHeads));
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_EQ(shifted[i], plain[i] + (i < static_cast<std::size_t>(kTinyTokens * kTinyHeads) ? 2.5F : 0.0F)) << i;
}

}  // namespace
}  // namespace marble::test

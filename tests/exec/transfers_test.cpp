// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// What the executor moves: sums in planned order, in place or through staging, and within one rank.

#include "support/recording.hpp"
#include "support/tiny_plan.hpp"
#include "support/tiny_tensors.hpp"

#include "marble/attention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace marble::test {
namespace {

const AttentionOptions kOptions{.softmax_scale = 1.0};

/// dq, dk and dv of rank 0 after backward over a tiny ring.
struct Gradients {
  float dq = 0.0F, dk = 0.0F, dv = 0.0F;
};

Gradients gradients_of_ring(std::int32_t num_ranks, bool strided, int passes) {
  Gradients result;
  run_local_ranks(num_ranks, {}, [&](Transport& transport) {
    Log log;
    const RankPlan plan = tiny_ring(transport.rank(), num_ranks).make();
    RecordingBackend backend(log, transport.rank());
    BoundAttention attention(plan, DType::fp32, kOptions, backend, transport);
    TinyTensors tensors(strided);
    const BackwardCall call = tensors.backward();
    for (int pass = 0; pass < passes; ++pass) attention_backward(attention, call);
    if (transport.rank() == 0) result = {element(call.dq, 0), element(call.dk, 5), element(call.dv, 5)};
  });
  return result;
}

TEST(Transfers, KeyGradientsOfAllRanksReachTheirOwner) {
  // Rank r adds (r + 1) * 10^s in step s; rank 0's keys are attended by ranks 0, 1 and 2 in steps 0, 1 and 2.
  const Gradients gradients = gradients_of_ring(3, false, 1);
  EXPECT_EQ(gradients.dk, 1.0F + 20.0F + 300.0F);
  EXPECT_EQ(gradients.dv, 1.0F + 20.0F + 300.0F);
  EXPECT_EQ(gradients.dq, 1.0F + 10.0F + 100.0F);
}

TEST(Transfers, StridedTensorsGiveTheSameSums) {
  const Gradients gradients = gradients_of_ring(3, true, 1);
  EXPECT_EQ(gradients.dk, 321.0F);
  EXPECT_EQ(gradients.dv, 321.0F);
  EXPECT_EQ(gradients.dq, 111.0F);
}

TEST(Transfers, ASecondPassStartsFromZeroAgain) {
  // Five steps: slots are used again, so partials of an earlier step must have been cleared too.
  const Gradients once = gradients_of_ring(5, false, 1);
  const Gradients twice = gradients_of_ring(5, false, 2);
  EXPECT_EQ(once.dk, 54321.0F);
  EXPECT_EQ(twice.dk, once.dk);
  EXPECT_EQ(twice.dq, once.dq);
}

/// A forward pass of one rank whose single step only moves `sends` to `recvs` within the rank.
template <typename Check>
void with_self_exchange(TinyPlan& tiny, const std::vector<Transfer>& sends, const std::vector<Transfer>& recvs,
                        bool strided, Check&& check) {
  tiny.parts.forward_steps = {{tiny.add_exchange(sends, recvs), -1, {}, -1, 0}};
  const RankPlan plan = tiny.make();
  run_local_ranks(1, {}, [&](Transport& local) {
    Log log;
    RecordingBackend backend(log, 0);
    RecordingTransport transport(local, log);
    BoundAttention attention(plan, DType::fp32, kOptions, backend, transport);
    TinyTensors tensors(strided);
    const ForwardCall call = tensors.forward();
    float value = 0.0F;
    for (const TensorView& view : {call.q, call.k, call.v})
      for_each_element(view, [&](std::byte* at) { store_element(at, DType::fp32, 0, value++); });
    attention_forward(attention, call);
    EXPECT_EQ(std::ranges::count_if(log, [](const std::string& line) { return line.starts_with("begin"); }), 0)
        << "the transport was asked to move what stays on the rank";
    const auto sums = std::ranges::count_if(recvs, [](const Transfer& recv) { return recv.add != 0; });
    Log calls = {"copy " + std::to_string(std::ssize(recvs) - sums)};
    if (sums > 0) calls.push_back("add " + std::to_string(sums));
    calls.emplace_back("copy 1");  // of the LSE's pads
    EXPECT_EQ(log, calls) << "a copy within the rank went through staging, or in several calls";
    check(call);
  });
}

TEST(Transfers, SendsToOneselfPairWithReceivesInOrder) {
  for (bool strided : {false, true}) {
    TinyPlan tiny(0, 1);
    const auto q = index(Tensor::q), out = index(Tensor::out);
    // Head 1 of q rows 0-1 to head 0 of out rows 4-5, and head 0 of q row 3 to head 1 of out row 0.
    with_self_exchange(tiny, {{0, q, 0, 2, 1, 1, 0, 0}, {0, q, 3, 1, 0, 1, 0, 0}},
                       {{0, out, 4, 2, 0, 1, 0, 0}, {0, out, 0, 1, 1, 1, 0, 0}}, strided, [](const ForwardCall& call) {
                         EXPECT_EQ(element(call.out, 4, 0, 2), element(call.q, 0, 1, 2));
                         EXPECT_EQ(element(call.out, 5, 0, 0), element(call.q, 1, 1, 0));
                         EXPECT_EQ(element(call.out, 0, 1, 3), element(call.q, 3, 0, 3));
                       });
  }
}

TEST(Transfers, ASelfReceiveMayAdd) {
  TinyPlan tiny(0, 1);
  const auto q = index(Tensor::q), k = index(Tensor::k), out = index(Tensor::out);
  with_self_exchange(tiny, {{0, q, 0, 6, 0, 1, 0, 0}, {0, k, 0, 6, 0, 1, 0, 0}},
                     {{0, out, 0, 6, 0, 1, 0, 0}, {0, out, 0, 6, 0, 1, 1, 0}}, false, [](const ForwardCall& call) {
                       EXPECT_EQ(element(call.out, 2, 0, 1), element(call.q, 2, 0, 1) + element(call.k, 2, 0, 1));
                     });
}

TEST(Transfers, SumsAreMadeInTheOrderListed) {
  // In fp32, (2^24 + 1) + 1 = 2^24, but (1 + 1) + 2^24 = 2^24 + 2.
  TinyPlan tiny(0, 1);
  const auto q = index(Tensor::q), out = index(Tensor::out);
  const std::int32_t big = tiny.add_buffer(1, BufferType::fp32);
  const auto row = [](std::int32_t buffer, std::int64_t r, bool add) {
    return Transfer{0, buffer, r, 1, 0, 1, add ? 1 : 0, 0};
  };
  tiny.parts.forward_steps = {{tiny.add_exchange({row(q, 0, false), row(q, 1, false), row(q, 2, false)},
                                                 {row(big, 0, false), row(big, 0, true), row(big, 0, true)}),
                               -1,
                               {},
                               tiny.add_exchange({row(big, 0, false)}, {row(out, 0, false)}),
                               0}};
  const RankPlan plan = tiny.make();
  run_local_ranks(1, {}, [&](Transport& transport) {
    Log log;
    RecordingBackend backend(log, 0);
    BoundAttention attention(plan, DType::fp32, kOptions, backend, transport);
    TinyTensors tensors;
    const ForwardCall call = tensors.forward();
    const auto set_row = [&](std::int64_t r, float value) {
      for_each_element(call.q.block(r, 1, 0, 1), [&](std::byte* at) { store_element(at, DType::fp32, 0, value); });
    };
    set_row(0, 1.0F);
    set_row(1, 1.0F);
    set_row(2, 0x1p24F);
    attention_forward(attention, call);
    EXPECT_EQ(element(call.out, 0), 0x1p24F + 2.0F);
    set_row(0, 0x1p24F);
    set_row(2, 1.0F);
    attention_forward(attention, call);
    EXPECT_EQ(element(call.out, 0), 0x1p24F);
  });
}

TEST(Workspace, IsOneAllocationOfTheStatedSize) {
  run_local_ranks(1, {}, [&](Transport& transport) {
    Log log;
    const RankPlan plan = tiny_ring(0, 1).make();
    RecordingBackend backend(log, 0);
    BoundAttention attention(plan, DType::fp32, kOptions, backend, transport);
    EXPECT_THAT(backend.allocations, testing::ElementsAre(workspace_bytes(plan, DType::fp32, backend)));
  });
}

TEST(Workspace, BothPassesShareIt) {
  Log log;
  RecordingBackend backend(log, 0);
  // Forward of a ring of 3: two slots of k and v. Backward: delta, dQ, fp32 sums and slots, staging.
  const std::int64_t key_bytes = kTinyRows * kTinyDim * 4;
  const std::int64_t bytes = workspace_bytes(tiny_ring(0, 3).make(), DType::fp32, backend);
  const std::int64_t buffers = 10 * 256;           // 2 sums, 2 sets of 4, each of key_bytes, aligned
  const std::int64_t staging = 2 * 256 + 2 * 256;  // k and v sent, in case they are strided; two sums received
  ASSERT_LE(key_bytes, 256);
  EXPECT_EQ(bytes, 256 /* LSE pads */ + 256 /* delta */ + buffers + 256 /* dQ */ + staging);
}

}  // namespace
}  // namespace marble::test

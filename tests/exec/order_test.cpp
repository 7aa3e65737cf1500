// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The executor's order of operations, and that exchanges travel while steps work.

#include "support/recording.hpp"
#include "support/tiny_plan.hpp"
#include "support/tiny_tensors.hpp"

#include "marble/attention.hpp"
#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>

namespace marble::test {
namespace {

using namespace std::chrono_literals;

/// Runs `pass(attention)` on every rank of a tiny ring; the log is rank 0's.
Log log_of_ring(std::int32_t num_ranks, const std::function<void(BoundAttention&)>& pass) {
  Log log;
  run_local_ranks(num_ranks, {}, [&](Transport& local) {
    Log own;
    const RankPlan plan = tiny_ring(local.rank(), num_ranks).make();
    RecordingBackend backend(own, local.rank());
    RecordingTransport transport(local, own);
    BoundAttention attention(plan, DType::fp32, {.softmax_scale = 1.0}, backend, transport);
    pass(attention);
    if (local.rank() == 0) log = own;
  });
  return log;
}

void forward(BoundAttention& attention) {
  TinyTensors tensors;
  attention_forward(attention, tensors.forward());
}

void backward(BoundAttention& attention) {
  TinyTensors tensors;
  attention_backward(attention, tensors.backward());
}

TEST(Order, ForwardBeginsTheNextFetchBeforeItWorks) {
  EXPECT_THAT(log_of_ring(3, forward),
              testing::ElementsAre("begin layer 0 forward step 1 fetch", "work 0", "wait layer 0 forward step 1 fetch",
                                   "begin layer 0 forward step 2 fetch", "work 1", "wait layer 0 forward step 2 fetch",
                                   "work 2", "copy 1"));
}

TEST(Order, BackwardWaitsForAReturnAfterTheNextWorkAndFinishesAfterTheLastReturn) {
  EXPECT_THAT(
      log_of_ring(3, backward),
      testing::ElementsAre("delta of 6 rows", "begin layer 0 backward step 1 fetch", "work 0",
                           "wait layer 0 backward step 1 fetch", "begin layer 0 backward step 2 fetch", "work 1",
                           "begin layer 0 backward step 1 return", "wait layer 0 backward step 2 fetch", "work 2",
                           "wait layer 0 backward step 1 return", "add 2", "begin layer 0 backward step 2 return",
                           "finish dq", "wait layer 0 backward step 2 return", "add 2", "cast", "cast"));
}

TEST(Order, OneRankExchangesNothing) {
  EXPECT_THAT(log_of_ring(1, forward), testing::ElementsAre("work 0", "copy 1"));
}

TEST(Order, APassWithoutStepsLeavesOnlyPads) {
  Log log;
  run_local_ranks(1, {}, [&](Transport& transport) {
    TinyPlan tiny(0, 1);
    tiny.parts.header.valid_rows = 0;
    const RankPlan plan = tiny.make();
    RecordingBackend backend(log, 0);
    BoundAttention attention(plan, DType::fp32, {.softmax_scale = 1.0}, backend, transport);
    TinyTensors tensors;
    const ForwardCall call = tensors.forward();
    attention_forward(attention, call);
    EXPECT_EQ(element(call.out, kTinyRows - 1), 0.0F);
  });
  EXPECT_THAT(log, testing::ElementsAre("copy 1"));
}

/// Wall time of a forward pass in which every work takes `work` and every exchange `delay`.
std::chrono::duration<double> timed_forward(std::int32_t num_ranks, std::chrono::milliseconds work,
                                            std::chrono::milliseconds delay) {
  std::chrono::duration<double> elapsed{};
  run_local_ranks(num_ranks, {}, [&](Transport& local) {
    Log log;
    const RankPlan plan = tiny_ring(local.rank(), num_ranks).make();
    RecordingBackend backend(log, local.rank());
    backend.work_time = work;
    const auto transport = make_faulty_transport(local, {.delay = delay}, {});
    BoundAttention attention(plan, DType::fp32, {.softmax_scale = 1.0}, backend, *transport);
    TinyTensors tensors;
    const ForwardCall call = tensors.forward();
    const auto begun = std::chrono::steady_clock::now();
    attention_forward(attention, call);
    if (local.rank() == 0) elapsed = std::chrono::steady_clock::now() - begun;
  });
  return elapsed;
}

TEST(Overlap, AStepTakesTheLongerOfComputeAndTransfer) {
  constexpr std::int32_t kRanks = 4;
  const double hidden = timed_forward(kRanks, 100ms, 80ms).count();
  EXPECT_GE(hidden, 0.4);
  EXPECT_LT(hidden, 0.4 + 0.12) << "three transfers of 80 ms were not hidden behind four works of 100 ms";
  const double exposed = timed_forward(kRanks, 20ms, 100ms).count();
  EXPECT_GE(exposed, 0.3);
  EXPECT_LT(exposed, 0.3 + 0.1) << "steps took the sum of work and transfer";
}

TEST(Order, AFailedExchangeIsNamedByLayerPassStepAndKind) {
  try {
    run_local_ranks(2, {.time_limit = 5s}, [&](Transport& local) {
      Log log;
      TinyPlan tiny = tiny_ring(local.rank(), 2);
      tiny.parts.header.layer = 3;
      const RankPlan plan = tiny.make();
      RecordingBackend backend(log, local.rank());
      const Fault fault = local.rank() == 1 ? Fault{.fail_at_exchange = 1} : Fault{};
      const auto transport = make_faulty_transport(local, fault, {});
      BoundAttention attention(plan, DType::fp32, {.softmax_scale = 1.0}, backend, *transport);
      backward(attention);
    });
    FAIL() << "no error";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("layer 3 backward step 1 return"));
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 1"));
  }
}

}  // namespace
}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// What the executor refuses, with which words, and that it does so before any exchange.

#include "support/recording.hpp"
#include "support/tiny_plan.hpp"
#include "support/tiny_tensors.hpp"

#include "marble/attention.hpp"
#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>

namespace marble::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

const AttentionOptions kOptions{.softmax_scale = 1.0};

/// Message of the InvalidArgument that a forward (or backward) call on a changed tensor throws; checks that no exchange
/// was begun.
template <typename Call>
std::string refusal_of(const std::function<void(Call&)>& change) {
  std::string message = "nothing was refused";
  Log log;
  run_local_ranks(1, {}, [&](Transport& local) {
    const RankPlan plan = tiny_ring(0, 1).make();
    RecordingBackend backend(log, 0);
    RecordingTransport transport(local, log);
    BoundAttention attention(plan, DType::fp32, kOptions, backend, transport);
    TinyTensors tensors;
    try {
      if constexpr (std::is_same_v<Call, ForwardCall>) {
        Call call = tensors.forward();
        change(call);
        attention_forward(attention, call);
      } else {
        Call call = tensors.backward();
        change(call);
        attention_backward(attention, call);
      }
    } catch (const InvalidArgument& error) {
      message = error.what();
      EXPECT_TRUE(log.empty()) << "refused only after " << log.front();
    }
  });
  return message;
}

TEST(Refusal, NamesArgumentShapeAndExpectation) {
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.k.rows = 5; }), "k: [5, 1, 4] should be [8, 1, 4]");
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.q.heads = 1; }), "q: [8, 1, 4] should be [8, 2, 4]");
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.lse.dim = 4; }), "lse: [8, 2, 4] should be [8, 2, 1]");
  EXPECT_EQ(refusal_of<BackwardCall>([](BackwardCall& call) { call.dv.dim = 3; }), "dv: [8, 1, 3] should be [8, 1, 4]");
}

TEST(Refusal, NamesTheShiftOfDelta) {
  EXPECT_EQ(refusal_of<BackwardCall>([](BackwardCall& call) {
              call.delta_shift = call.lse;
              call.delta_shift.rows = 6;
            }),
            "delta_shift: [6, 2, 1] should be [8, 2, 1]");
}

TEST(Refusal, NamesDtype) {
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.v.dtype = DType::bf16; }), "v: bf16 should be fp32");
  EXPECT_EQ(refusal_of<BackwardCall>([](BackwardCall& call) { call.dq.dtype = DType::fp16; }),
            "dq: fp16 should be fp32");
}

TEST(Refusal, NamesMissingMisalignedAndOverlappingMemory) {
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.out.data = nullptr; }), "out: no data");
  EXPECT_THAT(
      refusal_of<ForwardCall>([](ForwardCall& call) { call.q.data = static_cast<std::byte*>(call.q.data) + 2; }),
      HasSubstr("q: its address"));
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.out.row_stride = 0; }),
            "out: strides [0, 4] make elements of [8, 2, 4] overlap");
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.q.row_stride = -8; }),
            "q: strides [-8, 4] should not be negative");
}

TEST(Refusal, AnInputMayRepeatItsRows) {
  EXPECT_EQ(refusal_of<ForwardCall>([](ForwardCall& call) { call.v.row_stride = 0; }), "nothing was refused");
}

TEST(Refusal, NamesOptions) {
  const auto refusal = [](const AttentionOptions& options) {
    std::string message;
    run_local_ranks(1, {}, [&](Transport& transport) {
      Log log;
      const RankPlan plan = tiny_ring(0, 1).make();
      RecordingBackend backend(log, 0);
      try {
        const BoundAttention attention(plan, DType::fp32, options, backend, transport);
      } catch (const InvalidArgument& error) {
        message = error.what();
      }
    });
    return message;
  };
  EXPECT_THAT(refusal({}), HasSubstr("softmax_scale 0"));
  EXPECT_THAT(refusal({.softmax_scale = 1.0, .softcap = -2.0}), HasSubstr("softcap -2"));
}

/// Binds `make(rank)` on two ranks; each rank's message, empty where it was accepted.
struct Binding {
  RankPlan plan;
  DType dtype = DType::fp32;
  AttentionOptions options = kOptions;
  std::string backend_refusal = {};
};

std::vector<std::string> bind_two(const std::function<Binding(std::int32_t)>& make) {
  std::vector<std::string> messages(2);
  run_local_ranks(2, {.time_limit = 10s}, [&](Transport& transport) {
    Log log;
    const auto rank = transport.rank();
    const Binding binding = make(rank);
    RecordingBackend backend(log, rank);
    backend.refusal = binding.backend_refusal;
    try {
      const BoundAttention attention(binding.plan, binding.dtype, binding.options, backend, transport);
    } catch (const InvalidArgument& error) {
      messages[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return messages;
}

Binding usual(std::int32_t rank) {
  return {tiny_ring(rank, 2).make()};
}

TEST(Agreement, EqualPlansBind) {
  EXPECT_THAT(bind_two(usual), testing::Each(""));
}

TEST(Agreement, RanksWithDifferentPlansAreRefusedEverywhere) {
  EXPECT_THAT(bind_two([](std::int32_t rank) {
                TinyPlan plan = tiny_ring(rank, 2);
                plan.parts.header.plan_digest = 7 + static_cast<std::uint64_t>(rank);
                return Binding{plan.make()};
              }),
              testing::Each(HasSubstr("plan digest")));
  EXPECT_THAT(bind_two([](std::int32_t rank) {
                TinyPlan plan = tiny_ring(rank, 2);
                plan.parts.header.layer = static_cast<std::uint32_t>(rank);
                return Binding{plan.make()};
              }),
              testing::Each(HasSubstr("layer")));
}

TEST(Agreement, RanksWithDifferentDtypesOrOptionsAreRefusedEverywhere) {
  EXPECT_THAT(bind_two([](std::int32_t rank) {
                return Binding{tiny_ring(rank, 2).make(), rank == 0 ? DType::bf16 : DType::fp16};
              }),
              testing::Each(HasSubstr("dtype")));
  EXPECT_THAT(bind_two([](std::int32_t rank) {
                return Binding{tiny_ring(rank, 2).make(), DType::fp32, {.softmax_scale = 1.0 + rank}};
              }),
              testing::Each(HasSubstr("softmax_scale")));
  EXPECT_THAT(bind_two([](std::int32_t rank) {
                return Binding{tiny_ring(rank, 2).make(), DType::fp32, {.softmax_scale = 1.0, .softcap = 5.0 * rank}};
              }),
              testing::Each(HasSubstr("softcap")));
  EXPECT_THAT(
      bind_two([](std::int32_t rank) {
        return Binding{tiny_ring(rank, 2).make(), DType::fp32, {.softmax_scale = 1.0, .deterministic = rank == 1}};
      }),
      testing::Each(HasSubstr("deterministic")));
}

TEST(Agreement, ARankThatRefusesTellsTheOthers) {
  const auto messages = bind_two([](std::int32_t rank) {
    Binding binding = usual(rank);
    if (rank == 1) binding.backend_refusal = "head_dim 4 is not supported";
    return binding;
  });
  EXPECT_THAT(messages[0], HasSubstr("refusal of the plan"));
  EXPECT_EQ(messages[1], "head_dim 4 is not supported");
}

TEST(Agreement, APlanForAnotherRankOrMeshIsRefused) {
  EXPECT_THAT(bind_two([](std::int32_t) { return usual(0); })[1],
              HasSubstr("rank plan is for rank 0 of 2, this is rank 1"));
  EXPECT_THAT(bind_two([](std::int32_t rank) { return Binding{tiny_ring(rank, 3).make()}; })[0],
              HasSubstr("rank plan is for rank 0 of 3, this is rank 0 of 2"));
}

TEST(Refusal, AForwardPassThatUsesAGradientIsRefused) {
  const auto messages = bind_two([](std::int32_t rank) {
    TinyPlan plan = tiny_ring(rank, 2);
    plan.parts.forward_steps[0].give_back =
        plan.add_exchange({plan.whole(rank, index(Tensor::dq))}, {plan.whole(rank, index(Tensor::out))});
    return Binding{plan.make()};
  });
  EXPECT_THAT(messages[0], HasSubstr("forward pass uses dq"));
}

TEST(Refusal, KeyGradientsSummedBelowFp32AreRefused) {
  const auto messages = bind_two([](std::int32_t rank) {
    TinyPlan plan = tiny_ring(rank, 2);
    plan.parts.works[0].dk = plan.add_buffer(1, BufferType::io);
    return Binding{plan.make()};
  });
  EXPECT_THAT(messages[0], HasSubstr("not fp32"));
}

}  // namespace
}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/verify.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace marble {
namespace {

Layout mixed() {
  const std::vector<std::vector<Span>> samples = {
      {{Mode::causal, 150}, {Mode::full, 60}, {Mode::causal, 33}},
      {{Mode::causal, 90}, {Mode::noise, 70}, {Mode::full, 70}, {Mode::causal, 27}},
      {{Mode::causal, 1}},
  };
  return layout_from_samples(samples);
}

Model small_model() {
  return {.heads = 4, .kv_heads = 2, .head_dim = 16};
}

VerifyOptions options(DType dtype) {
  VerifyOptions result;
  result.dtype = dtype;
  result.plan.placement = Placement::ptrr;
  result.plan.strategy = Strategy::ring;
  result.plan.block = 32;
  result.plan.stripe = 32;
  result.threads = 2;
  return result;
}

TEST(Verify, PassesInEveryDtype) {
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const VerifyResult result = verify_local(mixed(), small_model(), {.ring = 3}, options(dtype));
    EXPECT_TRUE(result.pass) << to_string(dtype) << testing::PrintToString(result.failures);
    EXPECT_GT(result.out.error, 0.0);
    EXPECT_GT(result.dv.rounding, 0.0);
  }
}

TEST(Verify, CountsWhatRanAndNamesTheModes) {
  const VerifyResult result = verify_local(mixed(), small_model(), {.ring = 3}, options(DType::bf16));
  EXPECT_GT(result.ran.tiles, 0);
  EXPECT_EQ(result.ran.tiles, result.planned.tiles);
  EXPECT_EQ(result.ran.backward_tiles, result.planned.backward_tiles);
  EXPECT_GT(result.ran.received_tokens, 0.0);
  EXPECT_EQ(result.ran.received_tokens, result.planned.received_tokens);
  EXPECT_EQ(result.legal_pairs, count_legal_pairs(mixed()));
  EXPECT_THAT(result.modes, testing::ElementsAre(Mode::causal, Mode::full, Mode::noise));
}

TEST(Verify, ForwardOnlyRunsNoBackward) {
  VerifyOptions forward = options(DType::bf16);
  forward.forward_only = true;
  const VerifyResult result = verify_local(mixed(), small_model(), {.ring = 2}, forward);
  EXPECT_TRUE(result.pass) << testing::PrintToString(result.failures);
  EXPECT_EQ(result.ran.backward_tiles, 0);
}

TEST(Verify, ReportsProgressToTheEnd) {
  VerifyOptions watched = options(DType::bf16);
  double last = 0.0;
  watched.progress = [&](double fraction, std::string_view label) {
    EXPECT_GE(fraction, last);
    EXPECT_FALSE(label.empty());
    last = fraction;
  };
  EXPECT_TRUE(verify_local(mixed(), small_model(), {.ring = 2}, watched).pass);
  EXPECT_DOUBLE_EQ(last, 1.0);
}

TEST(Verify, RanksOfATransportGatherOnRankZero) {
  int results = 0;
  run_local_ranks(3, {}, [&](Transport& transport) {
    const auto result = verify_rank(mixed(), small_model(), {.ring = 3}, options(DType::bf16), transport);
    EXPECT_EQ(result.has_value(), transport.rank() == 0);
    if (!result) return;
    ++results;
    EXPECT_TRUE(result->pass) << testing::PrintToString(result->failures);
  });
  EXPECT_EQ(results, 1);
}

TEST(Verify, RefusesWhatItCannotVerify) {
  EXPECT_THROW((void)verify_local(Layout{}, small_model(), {}, options(DType::bf16)), InvalidArgument);
  VerifyOptions beyond = options(DType::bf16);
  beyond.layer = 1;
  EXPECT_THROW((void)verify_local(mixed(), small_model(), {}, beyond), InvalidArgument);
  run_local_ranks(2, {}, [&](Transport& transport) {
    EXPECT_THROW((void)verify_rank(mixed(), small_model(), {.ring = 3}, options(DType::bf16), transport),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace marble

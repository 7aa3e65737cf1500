// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Verification on a GPU: ranks as threads, each with a stream of its own, and the reference beside them.

#include "marble/generators.hpp"
#include "marble/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace marble {
namespace {

VerifyOptions on_gpu(DType dtype) {
  VerifyOptions options;
  options.dtype = dtype;
  options.backend = [](int threads) { return make_backend("cuda", 0, threads); };
  options.reference_gpu = 0;
  return options;
}

TEST(VerifyOnGpu, PassesWithRanksAsThreads) {
  const std::vector<std::vector<Span>> samples = {
      {{Mode::causal, 1500}, {Mode::full, 601}, {Mode::causal, 333}},
      {{Mode::causal, 900}, {Mode::noise, 701}, {Mode::full, 701}, {Mode::causal, 270}},
      {{Mode::causal, 1}},
  };
  const Model model{.heads = 8, .kv_heads = 2, .head_dim = 128};
  for (DType dtype : {DType::bf16, DType::fp16})
    for (std::int32_t ring : {1, 3, 8}) {
      const VerifyResult result = verify_local(layout_from_samples(samples), model, {.ring = ring}, on_gpu(dtype));
      EXPECT_TRUE(result.pass) << to_string(dtype) << " R=" << ring << testing::PrintToString(result.failures);
      EXPECT_GT(result.ran.tiles, 0);
      EXPECT_GT(result.dq.error, 0.0);
    }
}

TEST(VerifyOnGpu, LseDoesNotDriftWithTheNumberOfKeys) {
  const std::vector<std::vector<Span>> samples = {{{Mode::causal, 32768}}};
  VerifyOptions options = on_gpu(DType::bf16);
  options.forward_only = true;
  const VerifyResult result =
      verify_local(layout_from_samples(samples), {.heads = 2, .kv_heads = 1, .head_dim = 128}, {.ring = 2}, options);
  EXPECT_TRUE(result.pass) << testing::PrintToString(result.failures);
  // LSE is about 11 here. Eight roundings of that; an error that each of the 256 key blocks repeats gives more.
  constexpr double kBound = 8 * 11 * 0x1p-24;
  EXPECT_LE(result.lse_error, kBound);
  EXPECT_LE(result.single_rank_lse_error, kBound);
}

}  // namespace
}  // namespace marble

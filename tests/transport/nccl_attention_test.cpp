// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Whole layers over the stream transport: the executor receives into memory that the transport reserves.

#include "transport/thread_ranks.hpp"

#include "marble/generators.hpp"
#include "marble/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace marble::nccl {
namespace {

struct Case {
  std::string generator;
  Mesh mesh;
  Strategy strategy;
  std::int64_t window;
  Keep keep;
  Rung rung = Rung::copy;
};

class StreamAttention : public testing::TestWithParam<Case> {};

TEST_P(StreamAttention, IsExactAndCountsWhatItReceives) {
  const Case& c = GetParam();
  const Layout layout = generate(c.generator, 3'000, 1);
  const Model model{.heads = 4, .kv_heads = 2, .head_dim = 16, .layers = {{.rule = {.window = c.window}}}};
  VerifyOptions options;
  options.plan.strategy = c.strategy;
  options.plan.keep = c.keep;
  options.threads = 1;
  std::atomic<int> results{0};
  ThreadRanks{.num_ranks = c.mesh.num_ranks(), .options = {.rung = c.rung}}.run([&](StreamTransport& transport) {
    this_device->compute_at_once();
    const auto result = verify_rank(layout, model, c.mesh, options, transport);
    EXPECT_NE(transport.reserved(), nullptr);
    if (!result) return;
    ++results;
    EXPECT_TRUE(result->pass) << testing::PrintToString(result->failures);
    EXPECT_GT(transport.bytes_received(), 0);
  });
  EXPECT_EQ(results, 1);
}

INSTANTIATE_TEST_SUITE_P(
    OnHost, StreamAttention,
    testing::Values(Case{"qwen3vl-docs", {.ring = 2}, Strategy::ring, 0, Keep::nothing},
                    Case{"molmo2-sft", {.ring = 3}, Strategy::alltoall, 0, Keep::nothing},
                    Case{"gemma3-docs", {.ring = 2}, Strategy::alltoall, 512, Keep::nothing},
                    Case{"bagel-mix", {.ulysses = 2}, Strategy::ring, 0, Keep::scattered},
                    Case{"gemma3-docs", {.ring = 2, .ulysses = 2}, Strategy::allgather, 0, Keep::fetched},
                    Case{"molmo2-sft", {.ring = 3}, Strategy::ring, 0, Keep::nothing, Rung::put},
                    Case{"gemma3-docs", {.ring = 2, .ulysses = 2}, Strategy::alltoall, 512, Keep::fetched, Rung::put}));

}  // namespace
}  // namespace marble::nccl

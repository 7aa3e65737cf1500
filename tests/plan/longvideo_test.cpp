// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The paper's long-video rows (section 05), for its own strategy: chunked ring attention, on H100 nodes of eight. Its
// packs are not public; docs/hardware.md has the spread over seeds, and the fit.

#include "marble/cost.hpp"
#include "marble/generators.hpp"

#include <gtest/gtest.h>

namespace marble {
namespace {

struct Row {
  std::int64_t tokens;
  std::int32_t gpus;
  double paper_ms;
};

TEST(LongVideoTest, ChunkedRingTakesWhatThePaperMeasured) {
  const Model bagel{.heads = 28, .kv_heads = 4, .head_dim = 128};
  PlanOptions options{.placement = Placement::chunks, .strategy = Strategy::ring, .hardware = hardware_named("h100")};
  for (const Row& row :
       {Row{1 << 20, 32, 407}, Row{2 << 20, 32, 1015}, Row{4 << 20, 32, 1861}, Row{8 << 20, 64, 2190}}) {
    const Layout layout = generate("bagel-longvideo", row.tokens, 4);
    const Choice choice = choose(layout, bagel, {.ring = row.gpus / 4, .ulysses = 4}, options);
    EXPECT_NEAR(static_cast<double>(choice.best().model_ns) / 1e6 / row.paper_ms, 1.0, 0.15)
        << row.tokens << " tokens on " << row.gpus << " GPUs";
    EXPECT_LE(choice.best().layers[0].step_busiest_over_mean, row.gpus / 4 > 8 ? 1.04 : 1.03);
    EXPECT_TRUE(choice.best().fits);
  }
}

TEST(LongVideoTest, ManyRanksAreSimulatedAndStillFit) {
  const Layout layout = generate("bagel-longvideo", 8 << 20, 0);
  const Choice choice = choose(layout, {.heads = 28, .kv_heads = 4, .head_dim = 128}, {.ring = 256, .ulysses = 4},
                               {.placement = Placement::contiguous, .strategy = Strategy::ring});
  EXPECT_TRUE(choice.best().fits);
  EXPECT_GT(choice.best().layers[0].step_busiest_over_mean, 1.0);
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// From a layout to a plan, and what the plan says. Planning is pure and local: no rank needs to exist.

#include "marble/layout.hpp"
#include "marble/mask.hpp"
#include "marble/plan.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

int main() {
  using marble::Mode;
  // Two samples: text with two images that read themselves both ways, and a picture being generated from a prompt.
  const std::vector<std::vector<marble::Span>> samples = {
      {{Mode::causal, 700}, {Mode::full, 256}, {Mode::causal, 400}, {Mode::full, 256}, {Mode::causal, 90}},
      {{Mode::causal, 82}, {Mode::noise, 1026}},
  };
  const marble::Layout layout = marble::layout_from_samples(samples);

  // Ten layers without a window and fifty-two with one, 8 query heads on 4 key heads, over a ring of 4 ranks.
  marble::Model model;
  model.heads = 8;
  model.kv_heads = 4;
  model.layers = {{.rule = {}, .count = 10}, {.rule = {.window = 512, .clamp = false}, .count = 52}};
  marble::Mesh mesh;
  mesh.ring = 4;
  const marble::Plan plan = marble::make_plan(layout, model, mesh);

  fmt::print("{} tokens in {} order, placed by {} in {} pieces; {} rows a rank\n", layout.num_tokens(),
             marble::to_string(plan.canonical), marble::to_string(plan.placement), plan.pieces.size(), plan.rows);
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    const marble::LayerPlan& kind = plan.layers[static_cast<std::size_t>(layer)];
    const marble::Balance balance = marble::balance(plan, layer);
    fmt::print("window {}: {}, {} legal pairs, busiest rank {:.3f} of the mean, {} key tokens received\n",
               kind.kind.rule.window, marble::to_string(kind.strategy),
               marble::count_legal_pairs(layout, kind.kind.rule), balance.busiest_over_mean_pairs,
               marble::exchange_tokens(plan, layer).kv);
  }

  // A rank plan is what one rank executes: a flat buffer that a data loader can make and ship.
  const marble::RankPlan rank_plan = marble::make_rank_plan(plan, 0);
  fmt::print("rank 0: {} tokens, {} steps forward, {} backward, {} items, {} runs, {} bytes\n",
             rank_plan.header().valid_rows, rank_plan.forward_steps().size(), rank_plan.backward_steps().size(),
             rank_plan.items().size(), rank_plan.runs().size(), rank_plan.bytes().size());
  return 0;
}

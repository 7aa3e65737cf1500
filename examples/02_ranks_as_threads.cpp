// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Forward and backward over four ranks, as threads of this process, against the same code on one rank.

#include "attend.hpp"

#include "marble/generators.hpp"
#include "marble/plan.hpp"
#include "marble/transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace {

example::Tensors run(const marble::Layout& layout, const marble::Model& model, std::int32_t ranks) {
  marble::Mesh mesh;
  mesh.ring = ranks;
  const marble::Plan plan = marble::make_plan(layout, model, mesh);
  example::Tensors tensors = example::random_tensors(plan, 7);
  marble::run_local_ranks(ranks, {}, [&](marble::Transport& transport) { example::attend(plan, transport, tensors); });
  return tensors;
}

}  // namespace

int main() {
  const marble::Layout layout = marble::generate("gemma3-docs", 2048, 1);
  marble::Model model;
  model.heads = 4;
  model.kv_heads = 2;
  const example::Tensors four = run(layout, model, 4);
  const example::Tensors one = run(layout, model, 1);
  const float differences[] = {
      example::largest_difference(four.out, one.out), example::largest_difference(four.dq, one.dq),
      example::largest_difference(four.dk, one.dk), example::largest_difference(four.dv, one.dv)};
  fmt::print("largest difference between 4 ranks and 1: out {:.2e}, dq {:.2e}, dk {:.2e}, dv {:.2e}\n", differences[0],
             differences[1], differences[2], differences[3]);
  return *std::max_element(std::begin(differences), std::end(differences)) < 1e-3F ? 0 : 1;
}

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The same over processes: mpirun -n 4 03_mpi. Every rank plans for itself, from the layout alone, and the plans agree.

#include "attend.hpp"

#include "marble/generators.hpp"
#include "marble/plan.hpp"
#include "marble/transport.hpp"

#include <fmt/format.h>

int main() {
  const auto transport = marble::make_mpi_transport();
  marble::Mesh mesh;
  mesh.ring = transport->num_ranks();
  marble::Model model;
  model.heads = 4;
  model.kv_heads = 2;
  const marble::Plan plan = marble::make_plan(marble::generate("bagel-mix", 8192, 1), model, mesh);
  example::Tensors tensors = example::random_tensors(plan, 7);
  example::attend(plan, *transport, tensors);
  fmt::print("rank {} of {}: {} tokens, {} bytes received\n", transport->rank(), transport->num_ranks(),
             marble::rank_positions(plan, transport->rank()).size(), transport->bytes_received());
  return 0;
}

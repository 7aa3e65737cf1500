// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "marble/backend.hpp"
#include "marble/generators.hpp"
#include "marble/plan.hpp"
#include "marble/transport.hpp"

#include <fmt/format.h>

int main() {
  marble::Mesh mesh;
  mesh.ring = 4;
  const marble::Plan plan = marble::make_plan(marble::generate("gemma3-docs", 8192, 1), marble::Model{}, mesh);
  const auto backend = marble::make_cpu_backend(1);
  fmt::print("{} rows a rank; backend {}; MPI {}\n", plan.rows, backend->name(),
             marble::mpi_available() ? "on" : "off");
  return 0;
}

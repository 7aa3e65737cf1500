// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the ranks of a command compute and how their bytes travel.

#include "marble/backend.hpp"
#include "marble/plan.hpp"
#include "marble/transport.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace marble::cli {

struct RankFlags {
  std::string backend = "cpu";
  std::string transport = "local";
  int threads = 0;

  void add_to(CLI::App& app);
  /// Throws InvalidArgument on what is unknown, or cannot be had here; before any work.
  void check() const;
};

/// The ranks that this process runs: one, with a transport to the others, or all of them as threads.
struct Ranks {
  std::unique_ptr<Transport> transport;  // null: threads
  std::function<std::unique_ptr<Backend>(int num_threads)> backend;
  std::optional<int> device;  // the GPU of these ranks; none: the CPU

  /// How bytes move.
  [[nodiscard]] std::string describe() const { return transport == nullptr ? "local" : transport->describe(); }
};

/// Ranks of one process share a GPU; processes take the GPU of their rank on the host, or over mpi those of the host in
/// turn. Collective over a transport. Throws InvalidArgument when the processes are not as many as the mesh's ranks.
[[nodiscard]] Ranks make_ranks(const RankFlags& flags, const Mesh& mesh, std::chrono::milliseconds time_limit);

}  // namespace marble::cli

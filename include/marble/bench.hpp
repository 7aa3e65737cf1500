// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How long a layer takes over the ranks of a mesh, on random data, beside what it could take: its works without its
// exchanges, and its exchanges without its works. What it computes is not looked at; that is verify's.

#include "marble/backend.hpp"
#include "marble/plan.hpp"
#include "marble/tensor.hpp"
#include "marble/trace.hpp"
#include "marble/transport.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace marble {

struct BenchOptions {
  std::int32_t layer = 0;  // kind
  DType dtype = DType::bf16;
  AttentionOptions attention;
  std::uint64_t seed = 0;
  bool forward_only = false;
  int threads = 0;  // of this process, shared by its ranks; 0: all cores
  int warm_up = 2;
  int repeats = 10;
  /// Makes one rank's backend, on that rank's own thread.
  std::function<std::unique_ptr<Backend>(int num_threads)> backend = make_cpu_backend;
  TransportOptions transport;  // local ranks only
  TraceSink trace;             // of one more pass each way after the samples; none: nothing is recorded
};

/// Milliseconds of one pass: medians over the repeats, each repeat's time that of its slowest rank.
struct PassBench {
  double layer_ms = 0.0;
  double compute_ms = 0.0;          // works, sums and casts; nothing is exchanged, packed or unpacked
  double communication_ms = 0.0;    // exchanges with their packing and unpacking; nothing is attended
  std::int64_t received_bytes = 0;  // from other ranks, by all ranks

  /// layer_ms over the longer of the two others: 1 when the shorter one is hidden.
  [[nodiscard]] double over_longer() const;
};

struct BenchResult {
  PassBench forward;
  PassBench backward;                     // zeros when forward only
  double both_ms = 0.0;                   // forward, then backward
  std::int64_t legal_pairs = 0;           // of one head
  std::int64_t memory_bytes = 0;          // the caller's tensors and workspace that the fullest rank took
  std::int64_t planned_memory_bytes = 0;  // the same, by the cost model
  std::int64_t workspace_bytes = 0;       // of it, the executor's
};

/// Operations that `pairs` legal pairs of one head take: products of one score with q, k and v, and their gradients.
inline constexpr std::int64_t kForwardOperations = 4;  // for each head and head dimension
inline constexpr std::int64_t kBackwardOperations = 10;

/// Runs all ranks as threads of this process. Throws InvalidArgument on impossible options.
[[nodiscard]] BenchResult bench_local(const Plan& plan, const BenchOptions& options);

/// This process is rank transport.rank(). Only rank 0 gets the result.
[[nodiscard]] std::optional<BenchResult> bench_rank(const Plan& plan, const BenchOptions& options,
                                                    Transport& transport);

}  // namespace marble

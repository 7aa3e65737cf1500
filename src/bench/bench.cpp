// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/bench.hpp"

#include "bench/rank_bench.hpp"

#include "marble/cost.hpp"
#include "marble/error.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace marble {
namespace {

void check(const Plan& plan, const BenchOptions& options) {
  require(options.layer >= 0 && options.layer < std::ssize(plan.layers), "layer {} is not one of the {} layer kinds",
          options.layer, plan.layers.size());
  require(plan.layout.num_tokens() > 0, "layout holds no tokens, so there is nothing to time");
  require(options.repeats >= 1, "{} repeats; at least 1 is needed", options.repeats);
  require(options.warm_up >= 1, "{} warm-up passes; at least 1 is needed", options.warm_up);
}

int threads_per_rank(const BenchOptions& options, int local_ranks) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(1, (options.threads > 0 ? options.threads : cores) / local_ranks);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Over all ranks: a repeat takes as long as its slowest rank.
double median_of_slowest(const std::vector<RankSamples>& ranks, Timed timed) {
  std::vector<double> slowest = ranks.front().ms[static_cast<std::size_t>(timed)];
  for (const RankSamples& rank : ranks)
    for (std::size_t i = 0; i < slowest.size(); ++i)
      slowest[i] = std::max(slowest[i], rank.ms[static_cast<std::size_t>(timed)][i]);
  return median(std::move(slowest));
}

std::int64_t sum(const std::vector<RankSamples>& ranks, RankSamples::Count count) {
  double total = 0.0;
  for (const RankSamples& rank : ranks) total += rank.counts[count];
  return static_cast<std::int64_t>(total);
}

std::int64_t largest(const std::vector<RankSamples>& ranks, RankSamples::Count count) {
  double value = 0.0;
  for (const RankSamples& rank : ranks) value = std::max(value, rank.counts[count]);
  return static_cast<std::int64_t>(value);
}

BenchResult summarise(const Plan& plan, const BenchOptions& options, const std::vector<RankSamples>& ranks) {
  BenchResult result;
  result.forward = {median_of_slowest(ranks, Timed::forward), median_of_slowest(ranks, Timed::forward_compute),
                    median_of_slowest(ranks, Timed::forward_communication), sum(ranks, RankSamples::forward_bytes)};
  result.backward = {median_of_slowest(ranks, Timed::backward), median_of_slowest(ranks, Timed::backward_compute),
                     median_of_slowest(ranks, Timed::backward_communication), sum(ranks, RankSamples::backward_bytes)};
  result.both_ms = median_of_slowest(ranks, Timed::both);
  result.legal_pairs = count_legal_pairs(plan.layout, plan.layers[static_cast<std::size_t>(options.layer)].kind.rule);
  result.memory_bytes = largest(ranks, RankSamples::memory);
  result.workspace_bytes = largest(ranks, RankSamples::workspace);
  result.planned_memory_bytes = memory_bytes(plan, options.layer, options.dtype);
  return result;
}

}  // namespace

double PassBench::over_longer() const {
  const double longer = std::max(compute_ms, communication_ms);
  return longer > 0.0 ? layer_ms / longer : 1.0;
}

BenchResult bench_local(const Plan& plan, const BenchOptions& options) {
  check(plan, options);
  std::vector<RankSamples> ranks;
  run_local_ranks(plan.mesh.num_ranks(), options.transport, [&](Transport& transport) {
    std::vector<RankSamples> gathered =
        sample_rank(plan, options, threads_per_rank(options, plan.mesh.num_ranks()), transport);
    if (transport.rank() == 0) ranks = std::move(gathered);
  });
  return summarise(plan, options, ranks);
}

std::optional<BenchResult> bench_rank(const Plan& plan, const BenchOptions& options, Transport& transport) {
  check(plan, options);
  require(plan.mesh.num_ranks() == transport.num_ranks(), "mesh has {} x {} ranks, the transport {}", plan.mesh.ring,
          plan.mesh.ulysses, transport.num_ranks());
  const std::vector<RankSamples> ranks = sample_rank(plan, options, threads_per_rank(options, 1), transport);
  if (transport.rank() != 0) return std::nullopt;
  return summarise(plan, options, ranks);
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The planner, on two threads: planning one rank of R x U = 8 x 4 at 4M tokens (wall time from a layout in memory to
// the executable rank plans of every layer kind), its scaling and peak memory, the chunk search, the choice over all
// candidates for 128 GPUs, and the paper's plain classification for comparison.
//
//   planner_bench --benchmark_out=bench/results/planner.json --benchmark_out_format=json

#include "marble_commit.hpp"
#include "plain_classification.hpp"

#include "marble/cost.hpp"
#include "marble/generators.hpp"
#include "marble/plan.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

namespace marble {
namespace {

constexpr std::int64_t kMillion = std::int64_t{1} << 20;
constexpr Mesh kMesh{.ring = 8, .ulysses = 4};
constexpr int kThreads = 2;

/// A pack, its model, and options that name the chosen placement and strategies.
struct Case {
  Layout layout;
  Model model;
  PlanOptions options;
};

Case make_case(const GeneratorInfo& info, std::int64_t tokens) {
  Case result{generate(info.name, tokens, 0), model_of(info), {}};
  result.options.threads = kThreads;
  const Candidate best = choose(result.layout, result.model, kMesh, result.options).best();
  result.options.placement = best.placement;
  for (const LayerEstimate& layer : best.layers) result.options.layer_strategies.push_back(layer.strategy);
  return result;
}

/// Rank plans of all layer kinds; returns their bytes.
std::size_t plan_rank(const Case& one) {
  const Plan plan = make_plan(one.layout, one.model, kMesh, one.options);
  std::size_t bytes = 0;
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer)
    bytes += make_rank_plan(plan, 0, static_cast<std::int32_t>(layer), kThreads).bytes().size();
  return bytes;
}

/// Processor time of all threads, the least of three runs: other load on the machine does not bend the exponent.
double cpu_milliseconds_of(const Case& one) {
  double best = 1e9;
  for (int run = 0; run < 3; ++run) {
    const std::clock_t start = std::clock();
    benchmark::DoNotOptimize(plan_rank(one));
    best = std::min(best, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

void planning(benchmark::State& state, const GeneratorInfo& info) {
  const Case one = make_case(info, 4 * kMillion);
  std::size_t bytes = 0;
  for (auto _ : state) bytes = plan_rank(one);
  state.SetLabel(std::string(to_string(*one.options.placement)));
  state.counters["layer_kinds"] = static_cast<double>(one.model.layers.size());
  state.counters["rank_plan_MB"] = static_cast<double>(bytes) / 1e6;
}

/// With the placement and strategies chosen at 4M tokens: the slope of log processor time over log tokens from 1M to
/// 8M, by least squares.
void scaling(benchmark::State& state, const GeneratorInfo& info) {
  const PlanOptions options = make_case(info, 4 * kMillion).options;
  double slope = 0.0;
  for (auto _ : state) {
    constexpr std::array kSteps = {-1.5, -0.5, 0.5, 1.5};  // log2 of tokens around the mean
    slope = 0.0;
    for (std::size_t i = 0; i < kSteps.size(); ++i) {
      const double ms = cpu_milliseconds_of({generate(info.name, kMillion << i, 0), model_of(info), options});
      slope += kSteps[i] * std::log2(ms) / 5.0;
      state.counters["cpu_ms_at_" + std::to_string(1 << i) + "M"] = ms;
    }
  }
  state.SetLabel(std::string(to_string(*options.placement)));
  state.counters["exponent"] = slope;
}

/// make_plan with the chunks placement: the search, and the demand of the result.
void chunk_search(benchmark::State& state, const GeneratorInfo& info) {
  const Layout layout = generate(info.name, 8 * kMillion, 0);
  PlanOptions options{.placement = Placement::chunks, .strategy = Strategy::ring};
  options.threads = kThreads;
  std::size_t pieces = 0;
  for (auto _ : state) pieces = make_plan(layout, model_of(info), kMesh, options).pieces.size();
  state.counters["pieces"] = static_cast<double>(pieces);
}

void choice(benchmark::State& state, const GeneratorInfo& info) {
  const Layout layout = generate(info.name, 4 * kMillion, 0);
  PlanOptions options;
  options.threads = kThreads;
  Choice choice;
  for (auto _ : state) choice = choose_mesh(layout, model_of(info), 128, 8, options);
  const Candidate& best = choice.best();
  state.counters["candidates"] = static_cast<double>(choice.candidates.size());
  state.SetLabel(fmt::format("{} {} over {} x {}", to_string(best.placement), to_string(best.layers[0].strategy),
                             best.mesh.ring, best.mesh.ulysses));
}

/// Block pairs of one ring rank's queries with all keys, each tested once, after summarising all blocks.
void plain_classification(benchmark::State& state, const GeneratorInfo& info) {
  const Case one = make_case(info, 4 * kMillion);
  const Plan plan = make_plan(one.layout, one.model, kMesh, one.options);
  const Tracks tracks = to_tracks(one.layout);
  std::vector<std::vector<std::int64_t>> positions(static_cast<std::size_t>(kMesh.ring));
  for (std::int32_t rank = 0; rank < kMesh.num_ranks(); ++rank) {
    const std::vector<std::int64_t> part = rank_positions(plan, rank);
    std::vector<std::int64_t>& all = positions[static_cast<std::size_t>(rank / kMesh.ulysses)];
    all.insert(all.end(), part.begin(), part.end());
  }
  std::int64_t visible = 0;
  for (auto _ : state) {
    std::vector<std::vector<BlockSummary>> summaries;
    for (const std::vector<std::int64_t>& rank : positions) summaries.push_back(summarise(tracks, rank, plan.block));
    std::array<std::int64_t, kThreads> counts{};
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t q = t; q < summaries[0].size(); q += kThreads)
          for (const std::vector<BlockSummary>& keys : summaries)
            for (const BlockSummary& key : keys) counts[t] += classify(summaries[0][q], key, 0) != PairClass::empty;
      });
    threads.clear();
    visible = counts[0] + counts[1];
  }
  state.counters["visible_tiles"] = static_cast<double>(visible);
}

std::int64_t peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::strtoll(line.c_str() + 6, nullptr, 10);
  return 0;
}

/// In a process of its own: the peak with the layout alone, and with one rank planned.
int print_peaks(std::string_view name) {
  const GeneratorInfo& info = generator(name);
  Case one{generate(info.name, 4 * kMillion, 0), model_of(info), {}};
  one.options.threads = kThreads;
  one.options.placement = Placement::ptrr;  // the most pieces, so the most memory
  one.options.strategy = Strategy::ring;
  if (one.model.order_dependent) one.options.placement = Placement::contiguous;
  const std::int64_t before = peak_kilobytes();
  benchmark::DoNotOptimize(plan_rank(one));
  std::printf("%lld %lld\n", static_cast<long long>(before), static_cast<long long>(peak_kilobytes()));
  return 0;
}

void peak_memory(benchmark::State& state, const GeneratorInfo& info) {
  long long before = 0, after = 0;
  for (auto _ : state) {
    const std::string command = "/proc/" + std::to_string(getpid()) + "/exe --peak-memory " + info.name;
    std::FILE* output = popen(command.c_str(), "r");
    if (output == nullptr || std::fscanf(output, "%lld %lld", &before, &after) != 2)
      state.SkipWithError("the child process said nothing");
    if (output != nullptr) pclose(output);
  }
  state.counters["layout_MB"] = static_cast<double>(before) / 1e3;
  state.counters["peak_MB"] = static_cast<double>(after) / 1e3;
}

void register_all() {
  using Function = void (*)(benchmark::State&, const GeneratorInfo&);
  struct Entry {
    const char* name;
    Function function;
    int iterations;  // 0: as many as Google Benchmark likes
  };
  constexpr Entry kEntries[] = {{"planning", planning, 0},       {"chunk_search", chunk_search, 3},
                                {"choice", choice, 2},           {"scaling", scaling, 1},
                                {"peak_memory", peak_memory, 1}, {"plain_classification", plain_classification, 1}};
  for (const Entry& entry : kEntries)
    for (const GeneratorInfo& info : generators()) {
      const bool dense = info.name.starts_with("bagel");
      if (entry.function == chunk_search && !dense) continue;
      auto* registered =
          benchmark::RegisterBenchmark((std::string(entry.name) + "/" + info.name).c_str(), entry.function, info);
      registered->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();
      if (entry.iterations > 0) registered->Iterations(entry.iterations);
    }
}

}  // namespace
}  // namespace marble

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--peak-memory") return marble::print_peaks(argv[2]);
  benchmark::AddCustomContext("commit", MARBLE_COMMIT);
  marble::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

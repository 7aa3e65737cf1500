// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Times whole layers over the ranks of a mesh.

#include "command.hpp"
#include "estimates.hpp"
#include "flags.hpp"
#include "marble_commit.hpp"
#include "output.hpp"
#include "ranks.hpp"

#include "marble/bench.hpp"
#include "marble/cost.hpp"
#include "marble/error.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace marble::cli {
namespace {

struct Flags {
  LayoutFlags layout;
  ModelFlags model;
  CallFlags call;
  PlanFlags plan;
  HardwareFlags hardware;
  RankFlags ranks;
  int repeats = 10;
  int warm_up = 2;
  bool forward_only = false;
  std::string trace;
  bool json = false;
};

struct Job {
  NamedLayout named;
  Plan plan;
  BenchOptions options;
};

Job make_job(const Flags& flags) {
  flags.ranks.check();
  require(flags.repeats >= 1, "--repeats {} is not positive", flags.repeats);
  require(flags.warm_up >= 1, "--warm-up {} is not positive", flags.warm_up);
  Job job;
  job.options.dtype = parse_dtype(flags.call.dtype);
  PlanOptions options = resolve(flags.plan, flags.ranks.threads > 0 ? flags.ranks.threads : 2);
  options.hardware = resolve(flags.hardware);
  job.named = resolve(flags.layout);
  const Model model = resolve(flags.model, job.named.generator);
  job.options.attention = resolve(flags.call, model, job.named.generator);
  job.options.seed = flags.layout.seed.value_or(0);
  job.options.forward_only = flags.forward_only;
  job.options.threads = flags.ranks.threads;
  job.options.repeats = flags.repeats;
  job.options.warm_up = flags.warm_up;
  job.plan = make_plan(job.named.layout, model, flags.plan.mesh, options);
  return job;
}

/// What follows `key` and a colon in a file of such lines, such as /proc/cpuinfo; empty when it is not there.
std::string value_in(const std::filesystem::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

/// The processor's name, or the first GPU's.
std::string machine_name(const std::string& backend) {
  if (backend == "cpu") {
    const std::string model = value_in("/proc/cpuinfo", "model name");
    return model.empty() ? "unknown processor" : model;
  }
  std::error_code ignored;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", ignored))
    if (const std::string model = value_in(gpu.path() / "information", "Model"); !model.empty()) return model;
  return "unknown GPU";
}

double tflops(const Job& job, std::int64_t pairs, std::int64_t operations, double ms) {
  const Model& model = job.plan.model;
  const double all = static_cast<double>(operations * model.head_dim) * model.heads * static_cast<double>(pairs);
  return ms > 0.0 ? all / ms / 1e9 : 0.0;
}

Json pass_json(const Job& job, const BenchResult& result, const PassBench& pass, std::int64_t operations) {
  return {{"layer_ms", pass.layer_ms},
          {"compute_ms", pass.compute_ms},
          {"communication_ms", pass.communication_ms},
          {"layer_over_longer", pass.over_longer()},
          {"tflops", tflops(job, result.legal_pairs, operations, pass.layer_ms)},
          {"received_bytes", pass.received_bytes}};
}

/// Keys and values of all tokens, and their fp32 gradients, as a rank would hold them that gathers all keys.
std::int64_t gathered_bytes(const Job& job) {
  const Model& model = job.plan.model;
  const std::int64_t element = size_of(job.options.dtype) + (job.options.forward_only ? 0 : size_of(DType::fp32));
  return job.plan.layout.num_tokens() * 2 * model.kv_heads * model.head_dim * element;
}

Json memory_json(const Job& job, const BenchResult& result) {
  return {{"bytes", result.memory_bytes},
          {"planned_bytes", result.planned_memory_bytes},
          {"workspace_bytes", result.workspace_bytes},
          {"gathered_keys_bytes", gathered_bytes(job)}};
}

Json exchange_json(const ExchangeTokens& tokens) {
  return {{"kv_tokens", tokens.kv}, {"ring_kv_tokens", tokens.ring_kv}, {"allgather_kv_tokens", tokens.allgather_kv}};
}

Json layer_json(const Job& job, std::int32_t index, const BenchResult& result) {
  const LayerPlan& layer = job.plan.layers[static_cast<std::size_t>(index)];
  Json entry = {{"window", layer.kind.rule.window},
                {"clamp", layer.kind.rule.clamp},
                {"count", layer.kind.count},
                {"strategy", to_string(layer.strategy)},
                {"legal_pairs", result.legal_pairs},
                {"forward", pass_json(job, result, result.forward, kForwardOperations)},
                {"memory", memory_json(job, result)},
                {"exchange", exchange_json(exchange_tokens(job.plan, index))},
                {"predicted_ms", milliseconds(estimate(job.plan, index, job.options.dtype).total_ns())}};
  if (job.options.forward_only) return entry;
  entry["backward"] = pass_json(job, result, result.backward, kBackwardOperations);
  entry["both"] = {
      {"layer_ms", result.both_ms},
      {"tflops", tflops(job, result.legal_pairs, kForwardOperations + kBackwardOperations, result.both_ms)}};
  return entry;
}

void print_document(const Flags& flags, const Job& job, const std::vector<BenchResult>& results) {
  Json layers = Json::array();
  for (std::size_t i = 0; i < results.size(); ++i)
    layers.push_back(layer_json(job, static_cast<std::int32_t>(i), results[i]));
  print_json({{"layout", layout_json(job.named.layout)},
              {"mesh", {{"ring", job.plan.mesh.ring}, {"ulysses", job.plan.mesh.ulysses}}},
              {"heads", job.plan.model.heads},
              {"kv_heads", job.plan.model.kv_heads},
              {"head_dim", job.plan.model.head_dim},
              {"dtype", to_string(job.options.dtype)},
              {"placement", to_string(job.plan.placement)},
              {"backend", flags.ranks.backend},
              {"transport", flags.ranks.transport},
              {"repeats", job.options.repeats},
              {"machine", machine_name(flags.ranks.backend)},
              {"commit", MARBLE_COMMIT},
              {"layers", layers}});
}

void print_pass(const Job& job, const char* name, const BenchResult& result, const PassBench& pass,
                std::int64_t operations) {
  fmt::print("  {:<9} {:>10.3f} {:>10.3f} {:>14.3f} {:>9.3f} {:>9.1f} {:>16}\n", name, pass.layer_ms, pass.compute_ms,
             pass.communication_ms, pass.over_longer(), tflops(job, result.legal_pairs, operations, pass.layer_ms),
             grouped(pass.received_bytes));
}

void print_layer(const Job& job, std::int32_t index, const BenchResult& result) {
  const LayerPlan& layer = job.plan.layers[static_cast<std::size_t>(index)];
  const std::int64_t window = layer.kind.rule.window;
  fmt::print("\n{} layers, {}, {}: {} legal pairs; predicted {:.3f} ms\n", layer.kind.count,
             window == 0 ? "no window" : fmt::format("window {}", window), to_string(layer.strategy),
             grouped(result.legal_pairs), milliseconds(estimate(job.plan, index, job.options.dtype).total_ns()));
  fmt::print("  {:<9} {:>10} {:>10} {:>14} {:>9} {:>9} {:>16}\n", "ms", "layer", "compute", "communication", "/ longer",
             "TFLOP/s", "bytes received");
  print_pass(job, "forward", result, result.forward, kForwardOperations);
  if (!job.options.forward_only) {
    print_pass(job, "backward", result, result.backward, kBackwardOperations);
    fmt::print("  {:<9} {:>10.3f} {:>46.1f}\n", "both", result.both_ms,
               tflops(job, result.legal_pairs, kForwardOperations + kBackwardOperations, result.both_ms));
  }
  const ExchangeTokens tokens = exchange_tokens(job.plan, index);
  fmt::print("  key tokens received: {}; an all-gather of all keys receives {}\n", grouped(tokens.kv),
             grouped(tokens.allgather_kv));
  fmt::print("  bytes of a rank: {} (planned {}), workspace {}; all keys gathered alone take {}\n",
             grouped(result.memory_bytes), grouped(result.planned_memory_bytes), grouped(result.workspace_bytes),
             grouped(gathered_bytes(job)));
}

void print_report(const Flags& flags, const Job& job, const std::vector<BenchResult>& results) {
  fmt::print("{}ring {} x ulysses {}, {}/{} heads of {}, {}, {} placement, {} backend, {} transport; medians of {}\n",
             layout_summary(job.named), job.plan.mesh.ring, job.plan.mesh.ulysses, job.plan.model.heads,
             job.plan.model.kv_heads, job.plan.model.head_dim, to_string(job.options.dtype),
             to_string(job.plan.placement), flags.ranks.backend, flags.ranks.transport, job.options.repeats);
  for (std::size_t i = 0; i < results.size(); ++i) print_layer(job, static_cast<std::int32_t>(i), results[i]);
}

/// One result per layer kind; over a transport only on rank 0.
std::vector<BenchResult> run_layers(const Job& job, Transport* transport) {
  std::vector<BenchResult> results;
  for (std::int32_t layer = 0; layer < std::ssize(job.plan.layers); ++layer) {
    BenchOptions options = job.options;
    options.layer = layer;
    if (transport == nullptr)
      results.push_back(bench_local(job.plan, options));
    else if (const auto result = bench_rank(job.plan, options, *transport))
      results.push_back(*result);
  }
  return results;
}

int run_bench(const Flags& flags) {
  TraceFile trace(flags.trace);
  Job job = make_job(flags);
  const Ranks ranks = make_ranks(flags.ranks, job.plan.mesh, job.options.transport.time_limit);
  job.options.backend = ranks.backend;
  job.options.trace = trace.sink();
  const std::vector<BenchResult> results = run_layers(job, ranks.transport.get());
  if (results.empty()) return 0;
  trace.write();
  if (flags.json)
    print_document(flags, job, results);
  else
    print_report(flags, job, results);
  return 0;
}

}  // namespace

Run set_up_bench(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  flags->layout.add_to(app);
  flags->model.add_to(app);
  flags->plan.add_to(app);
  flags->hardware.add_to(app);
  flags->call.add_to(app);
  app.add_flag("--forward-only", flags->forward_only, "Leave out the gradients");
  flags->ranks.add_to(app);
  app.add_option("--repeats", flags->repeats, "Samples of each time")->capture_default_str();
  app.add_option("--warm-up", flags->warm_up, "Passes before the samples")->capture_default_str();
  app.add_option("--trace", flags->trace, "Write a trace of one more pass each way to this file, for Perfetto");
  app.add_flag("--json", flags->json, "Print one JSON document");
  return [flags] { return run_bench(*flags); };
}

}  // namespace marble::cli

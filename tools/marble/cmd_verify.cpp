// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "command.hpp"
#include "flags.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "ranks.hpp"

#include "marble/error.hpp"
#include "marble/plan.hpp"
#include "marble/transport.hpp"
#include "marble/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace marble::cli {
namespace {

struct Flags {
  LayoutFlags layout;
  ModelFlags model;
  CallFlags call;
  PlanFlags plan;
  std::string plan_file;
  RankFlags ranks;
  std::string trace;
  bool forward_only = false;
  bool json = false;
};

/// What is verified: every layer kind of `model`, one after the other.
struct Job {
  NamedLayout named;
  Model model;
  Mesh mesh;
  VerifyOptions options;
  std::string transport = "local";  // how it moves bytes
};

/// The plan's model, mesh and choices; planning again from them must give the plan in the file.
void take_choices_from_plan(const std::string& file, Job& job) {
  const Plan plan = plan_from_bytes(read_bytes(file));
  check_plan_for(plan, job.named.layout);
  job.model = plan.model;
  job.mesh = plan.mesh;
  job.options.plan.canonical = plan.canonical;
  job.options.plan.placement = plan.placement;
  for (const LayerPlan& layer : plan.layers) job.options.plan.layer_strategies.push_back(layer.strategy);
  job.options.plan.block = plan.block;
  job.options.plan.hardware = plan.hardware;
  job.options.plan.keep = plan.keep;
  const Plan again = make_plan(job.named.layout, job.model, job.mesh, job.options.plan);
  require(again.digest == plan.digest, "plan '{}' (digest {:016x}) was made with options that verify cannot set", file,
          plan.digest);
}

Job make_job(const Flags& flags) {
  flags.ranks.check();
  Job job;
  job.options.dtype = parse_dtype(flags.call.dtype);
  job.options.plan = resolve(flags.plan, flags.ranks.threads > 0 ? flags.ranks.threads : 2);
  job.named = resolve(flags.layout);
  job.model = resolve(flags.model, job.named.generator);
  job.mesh = flags.plan.mesh;
  if (!flags.plan_file.empty()) take_choices_from_plan(flags.plan_file, job);
  job.options.attention = resolve(flags.call, job.model, job.named.generator);
  job.options.seed = flags.layout.seed.value_or(0);
  job.options.forward_only = flags.forward_only;
  job.options.threads = flags.ranks.threads;
  return job;
}

void require_modes(const NamedLayout& named, VerifyResult& result) {
  if (named.generator == nullptr) return;
  for (const Mode mode : named.generator->modes) {
    if (std::find(result.modes.begin(), result.modes.end(), mode) != result.modes.end()) continue;
    result.pass = false;
    result.failures.push_back(fmt::format("mode {} of {} is absent from the layout", to_string(mode), named.name));
  }
}

/// One result per layer kind. Over a transport only rank 0 has results.
std::vector<VerifyResult> run_layers(const Job& job, Transport* transport) {
  const std::size_t num_layers = job.model.layers.size();
  std::vector<VerifyResult> results;
  Progress progress;
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    VerifyOptions options = job.options;
    options.layer = static_cast<std::int32_t>(layer);
    options.progress = [&](double fraction, std::string_view label) {
      progress.show((static_cast<double>(layer) + fraction) / static_cast<double>(num_layers), label);
    };
    if (transport == nullptr) {
      results.push_back(verify_local(job.named.layout, job.model, job.mesh, options));
    } else if (auto result = verify_rank(job.named.layout, job.model, job.mesh, options, *transport)) {
      results.push_back(std::move(*result));
    }
  }
  for (VerifyResult& result : results) require_modes(job.named, result);
  return results;
}

struct NamedError {
  const char* name;
  VerifyError VerifyResult::*error;
};
constexpr NamedError kErrors[] = {
    {"out", &VerifyResult::out}, {"dq", &VerifyResult::dq}, {"dk", &VerifyResult::dk}, {"dv", &VerifyResult::dv}};

std::span<const NamedError> tensors(const Job& job) {
  return std::span(kErrors).first(job.options.forward_only ? 1 : 4);
}

Json errors_json(const Job& job, const VerifyResult& result) {
  Json errors = Json::object();
  for (const auto& [name, member] : tensors(job)) {
    const VerifyError& error = result.*member;
    errors[name] = {{"error", error.error},
                    {"single_rank_error", error.single_rank_error},
                    {"ratio", error.ratio},
                    {"rounding", error.rounding}};
  }
  return errors;
}

Json counts_json(const VerifyCounts& counts) {
  return {
      {"tiles", counts.tiles}, {"backward_tiles", counts.backward_tiles}, {"received_tokens", counts.received_tokens}};
}

Json result_json(const Job& job, const VerifyResult& result) {
  return {{"errors", errors_json(job, result)},     {"lse_error", result.lse_error}, {"ran", counts_json(result.ran)},
          {"planned", counts_json(result.planned)}, {"pass", result.pass},           {"failures", result.failures}};
}

/// Over all layer kinds: each tensor's worst ratio, the sums of the counts, every failure.
VerifyResult worst(const std::vector<VerifyResult>& results) {
  VerifyResult all = results.front();
  for (const VerifyResult& result : std::span(results).subspan(1)) {
    for (const auto& [name, member] : kErrors) {
      if ((result.*member).ratio > (all.*member).ratio) all.*member = result.*member;
    }
    all.lse_error = std::max(all.lse_error, result.lse_error);
    for (const auto& [sum, part] : {std::pair(&all.ran, &result.ran), std::pair(&all.planned, &result.planned)}) {
      sum->tiles += part->tiles;
      sum->backward_tiles += part->backward_tiles;
      sum->received_tokens += part->received_tokens;
    }
    all.pass = all.pass && result.pass;
    all.failures.insert(all.failures.end(), result.failures.begin(), result.failures.end());
  }
  return all;
}

void print_document(const Job& job, const std::vector<VerifyResult>& results) {
  Json layers = Json::array();
  for (std::size_t layer = 0; layer < results.size(); ++layer) {
    const LayerKind& kind = job.model.layers[layer];
    Json entry = {{"window", kind.rule.window}, {"clamp", kind.rule.clamp}, {"count", kind.count}};
    entry["legal_pairs"] = results[layer].legal_pairs;
    entry.update(result_json(job, results[layer]));
    layers.push_back(entry);
  }
  Json document = result_json(job, worst(results));
  document["layout"] = layout_json(job.named.layout);
  document["mesh"] = {{"ring", job.mesh.ring}, {"ulysses", job.mesh.ulysses}};
  document["heads"] = job.model.heads;
  document["kv_heads"] = job.model.kv_heads;
  document["head_dim"] = job.model.head_dim;
  document["softmax_scale"] = job.options.attention.softmax_scale;
  document["softcap"] = job.options.attention.softcap;
  document["dtype"] = to_string(job.options.dtype);
  document["transport"] = job.transport;
  document["layers"] = layers;
  print_json(document);
}

void print_layer(const Job& job, const LayerKind& kind, const VerifyResult& result) {
  const std::string window = kind.rule.window == 0 ? "no window" : fmt::format("window {}", kind.rule.window);
  fmt::print("\n{}{}: {} legal pairs, {} tiles forward, {} key tokens received\n", window,
             kind.rule.clamp ? ", clamped" : "", grouped(result.legal_pairs), grouped(result.ran.tiles),
             grouped(static_cast<std::int64_t>(result.ran.received_tokens)));
  fmt::print("  {:<7} {:>12} {:>12} {:>8} {:>12}\n", "", "distributed", "one rank", "ratio", "rounding");
  for (const auto& [name, member] : tensors(job)) {
    const VerifyError& error = result.*member;
    fmt::print("  {:<7} {:>12.3e} {:>12.3e} {:>8.4f} {:>12.3e}\n", name, error.error, error.single_rank_error,
               error.ratio, error.rounding);
  }
  fmt::print("  {:<7} {:>12.3e} {:>12.3e}\n", "lse", result.lse_error, result.single_rank_lse_error);
  for (const std::string& failure : result.failures) fmt::print("  FAILED: {}\n", failure);
}

void print_report(const Job& job, const std::vector<VerifyResult>& results) {
  fmt::print("{}", layout_summary(job.named));
  fmt::print(
      "ring {} x ulysses {}, {}/{} heads of {}, {}; relative errors against dense fp64 (lse: largest absolute)\n",
      job.mesh.ring, job.mesh.ulysses, job.model.heads, job.model.kv_heads, job.model.head_dim,
      to_string(job.options.dtype));
  fmt::print("transport {}\n", job.transport);
  for (std::size_t layer = 0; layer < results.size(); ++layer) {
    print_layer(job, job.model.layers[layer], results[layer]);
  }
  fmt::print("\n{}\n", worst(results).pass ? "PASS" : "FAIL");
}

/// Prints what was found; true when all of it is within the bounds.
bool report(const Flags& flags, const Job& job, const std::vector<VerifyResult>& results) {
  if (flags.json) {
    print_document(job, results);
  } else {
    print_report(job, results);
  }
  return worst(results).pass;
}

/// Rank 0's verdict on every rank, so that each process ends with the same exit code.
bool share_verdict(bool pass, Transport& transport) {
  std::uint8_t verdict = pass ? 1 : 0;
  std::vector<Message> sends;
  std::vector<Message> recvs;
  if (transport.rank() == 0) {
    for (std::int32_t peer = 1; peer < transport.num_ranks(); ++peer) sends.push_back({peer, &verdict, 1});
  } else {
    recvs.push_back({0, &verdict, 1});
  }
  transport.wait(transport.begin(sends, recvs, "verdict of rank 0"));
  return verdict != 0;
}

int run_verify(const Flags& flags) {
  TraceFile trace(flags.trace);
  Job job = make_job(flags);
  job.options.trace = trace.sink();
  const Ranks ranks = make_ranks(flags.ranks, job.mesh, job.options.transport.time_limit);
  job.transport = ranks.describe();
  job.options.backend = ranks.backend;
  job.options.reference_gpu = ranks.device;
  const auto results = run_layers(job, ranks.transport.get());
  trace.write();
  if (ranks.transport == nullptr) return report(flags, job, results) ? 0 : 1;
  const bool pass = ranks.transport->rank() == 0 && report(flags, job, results);
  return share_verdict(pass, *ranks.transport) ? 0 : 1;
}

}  // namespace

Run set_up_verify(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  flags->layout.add_to(app);
  CLI::Option* plan_file = app.add_option("--plan", flags->plan_file, "Verify the plan in this file (plan --out)");
  for (CLI::Option* option : flags->model.add_to(app)) plan_file->excludes(option);
  for (CLI::Option* option : flags->plan.add_to(app)) plan_file->excludes(option);
  flags->call.add_to(app);
  app.add_flag("--forward-only", flags->forward_only, "Leave out the gradients");
  flags->ranks.add_to(app);
  app.add_option("--trace", flags->trace, "Write a trace of the distributed run to this file, for Perfetto");
  app.add_flag("--json", flags->json, "Print one JSON document");
  return [flags] { return run_verify(*flags); };
}

}  // namespace marble::cli

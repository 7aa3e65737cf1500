// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/verify.hpp"

#include "verify/errors.hpp"
#include "verify/rank_run.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <utility>

namespace marble {
namespace {

/// Rough shares of the whole time: distributed run, one rank, reference.
constexpr double kRunShare = 0.25;

int num_threads(const VerifyOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

VerifyProgress part(const VerifyProgress& progress, double begin, double share, std::string_view what) {
  if (!progress) return {};
  return [=, &progress, name = std::string(what)](double fraction, std::string_view) {
    progress(begin + share * fraction, name);
  };
}

std::vector<Mode> modes_of(const Layout& layout) {
  std::array<bool, kNumModes> present{};
  for (const Span& span : layout.spans)
    if (span.length > 0) present[static_cast<std::size_t>(span.mode)] = true;
  std::vector<Mode> modes;
  for (int mode = 0; mode < kNumModes; ++mode)
    if (present[static_cast<std::size_t>(mode)]) modes.push_back(static_cast<Mode>(mode));
  return modes;
}

/// A verification's fixed parts: checked options, plans and inputs.
class Verification {
 public:
  Verification(const Layout& layout, const Model& model, const Mesh& mesh, const VerifyOptions& options)
      : options_(options), threads_(num_threads(options)), plan_(make_plan(layout, model, mesh, options.plan)) {
    require(options.layer >= 0 && options.layer < std::ssize(model.layers), "layer {} is not one of the {} layer kinds",
            options.layer, model.layers.size());
    require(layout.num_tokens() > 0, "layout holds no tokens, so there is nothing to verify");
    options_.threads = threads_;
    if (options_.attention.softmax_scale == 0.0) options_.attention.softmax_scale = 1.0 / std::sqrt(model.head_dim);
    inputs_ = random_inputs(layout.num_tokens(), shape(), options.dtype, options.seed, threads_);
  }

  [[nodiscard]] RunRequest distributed(int local_ranks) const {
    return {plan_,
            inputs_,
            options_,
            std::max(1, threads_ / local_ranks),
            part(options_.progress, 0.0, kRunShare, "distributed run"),
            options_.trace};
  }

  /// Compares the gathered run with one rank and with fp64.
  [[nodiscard]] VerifyResult conclude(const RunResult& run) const {
    const Plan single_plan = make_plan(plan_.layout, plan_.model, Mesh{}, options_.plan);
    const RunResult single = run_ranks(
        {single_plan, inputs_, options_, threads_, part(options_.progress, kRunShare, kRunShare, "one rank")});
    const VerifyProgress progress = part(options_.progress, 2 * kRunShare, 1.0 - 2 * kRunShare, "fp64 reference");
    DenseOptions dense{options_.attention, options_.dtype, !options_.forward_only, threads_, {}};
    if (progress) dense.progress = [&](double fraction) { progress(fraction, {}); };
    const MaskRule& rule = plan_.layers[static_cast<std::size_t>(options_.layer)].kind.rule;
    const DenseResult truth = options_.reference_gpu ? dense_reference_cuda(plan_.layout, rule, shape(), inputs_, dense,
                                                                            *options_.reference_gpu)
                                                     : dense_reference(plan_.layout, rule, shape(), inputs_, dense);
    VerifyResult result;
    result.ran = run.ran;
    result.planned = planned_counts(plan_, options_);
    result.modes = modes_of(plan_.layout);
    result.legal_pairs = count_legal_pairs(plan_.layout, rule);
    judge(run, single, truth, inputs_, options_, result);
    if (progress) progress(1.0, {});
    return result;
  }

 private:
  [[nodiscard]] HeadShape shape() const { return {plan_.model.heads, plan_.model.kv_heads, plan_.model.head_dim}; }

  VerifyOptions options_;
  int threads_;
  Plan plan_;
  DenseInputs inputs_;
};

}  // namespace

VerifyResult verify_local(const Layout& layout, const Model& model, const Mesh& mesh, const VerifyOptions& options) {
  const Verification verification(layout, model, mesh, options);
  return verification.conclude(run_ranks(verification.distributed(mesh.num_ranks())));
}

std::optional<VerifyResult> verify_rank(const Layout& layout, const Model& model, const Mesh& mesh,
                                        const VerifyOptions& options, Transport& transport) {
  require(mesh.num_ranks() == transport.num_ranks(), "mesh has {} x {} ranks, the transport {}", mesh.ring,
          mesh.ulysses, transport.num_ranks());
  const Verification verification(layout, model, mesh, options);
  const std::optional<RunResult> run = run_rank(verification.distributed(1), transport);
  if (!run) return std::nullopt;
  return verification.conclude(*run);
}

}  // namespace marble

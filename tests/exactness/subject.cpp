// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "exactness/subject.hpp"

#include "verify/errors.hpp"

#include <cmath>

namespace marble::exactness {

Pack pack_of(const LayoutCase& layout_case) {
  return {layout_from_samples(layout_case.samples), layout_case.rule, layout_case.head_dim, layout_case.block};
}

Subject::Subject(const Pack& pack, const Heads& heads, DType dtype, double softcap, const Device& device)
    : pack_(pack),
      model_{.heads = heads.query, .kv_heads = heads.key, .head_dim = pack.head_dim, .layers = {{.rule = pack.rule}}} {
  const HeadShape shape{model_.heads, model_.kv_heads, model_.head_dim};
  options_.dtype = dtype;
  options_.backend = device.backend;
  options_.attention = {.softmax_scale = 1.0 / std::sqrt(model_.head_dim), .softcap = softcap};
  inputs_ = random_inputs(pack.layout.num_tokens(), shape, dtype, digest(pack.layout));
  const DenseOptions dense{.attention = options_.attention, .dtype = dtype, .threads = 2};
  truth_ = device.reference_gpu
               ? dense_reference_cuda(pack.layout, pack.rule, shape, inputs_, dense, *device.reference_gpu)
               : dense_reference(pack.layout, pack.rule, shape, inputs_, dense);
}

PlanOptions Subject::options() const {
  PlanOptions options;
  options.placement = Placement::ptrr;
  options.strategy = Strategy::ring;
  options.block = pack_.block;
  options.stripe = pack_.block;
  options.hardware.range_ns = 0;  // so that packs this small are cut into chunks
  return options;
}

RunResult Subject::run(const Plan& plan, const DenseInputs& inputs, const BackendFactory& backend) const {
  VerifyOptions options = options_;
  options.backend = backend;
  return run_ranks({plan, inputs, options, 1, {}});
}

const RunResult& Subject::single_run(const Plan& plan) {
  const auto found = single_runs_.find(plan.canonical);
  if (found != single_runs_.end()) return found->second;
  PlanOptions options = this->options();
  options.canonical = plan.canonical;
  return single_runs_.emplace(plan.canonical, run(this->plan({}, options), inputs_)).first->second;
}

VerifyResult Subject::judge(const Plan& plan, const BackendFactory& backend) {
  const RunResult distributed = run(plan, inputs_, backend);
  VerifyResult result;
  result.ran = distributed.ran;
  result.planned = planned_counts(plan, options_);
  marble::judge(distributed, single_run(plan), truth_, inputs_, options_, result);
  return result;
}

}  // namespace marble::exactness

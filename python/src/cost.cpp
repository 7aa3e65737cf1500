// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/cost.hpp"

#include "bindings.hpp"

#include "marble/plan.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace marble::python {
namespace {

/// Placement, strategy of each layer kind, predicted nanoseconds, bytes, whether it fits.
using CandidateTuple = std::tuple<std::string, std::vector<std::string>, std::int64_t, std::int64_t, bool>;

CandidateTuple to_tuple(const Candidate& candidate) {
  std::vector<std::string> strategies;
  for (const LayerEstimate& layer : candidate.layers) strategies.emplace_back(to_string(layer.strategy));
  return {std::string(to_string(candidate.placement)), strategies, candidate.model_ns, candidate.memory_bytes,
          candidate.fits};
}

/// What the planner would choose for a plan's layout, model and mesh: why, and all candidates, best first.
std::tuple<std::string, std::vector<CandidateTuple>> choice_for(const Plan& plan, int threads) {
  PlanOptions options;
  options.canonical = plan.canonical;
  options.keep = plan.keep;
  options.block = plan.block;
  options.stripe = plan.block;
  options.threads = threads;
  const Choice choice = choose(plan.layout, plan.model, plan.mesh, options);
  std::vector<CandidateTuple> candidates;
  for (const Candidate& candidate : choice.candidates) candidates.push_back(to_tuple(candidate));
  return {choice.why, candidates};
}

}  // namespace

void bind_cost(nb::module_& module) {
  module.def("choice_for", &choice_for, nb::arg("plan"), nb::arg("threads"));
}

}  // namespace marble::python

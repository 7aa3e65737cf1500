// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/plan.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

#include "marble/rank_plan.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace marble::python {
namespace {

using LayerTuple = std::tuple<std::int64_t, bool, std::int32_t>;  // window, clamp, count

Model to_model(std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim, const std::vector<LayerTuple>& layers,
               bool order_dependent) {
  Model model{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .layers = {}};
  model.order_dependent = order_dependent;
  for (const auto& [window, clamp, count] : layers)
    model.layers.push_back({.rule = {.window = window, .clamp = clamp}, .count = count});
  return model;
}

PlanOptions to_options(const std::optional<std::string>& canonical, const std::optional<std::string>& placement,
                       const std::optional<std::string>& strategy, const std::string& keep, std::int32_t block,
                       int threads) {
  PlanOptions options;
  if (canonical) options.canonical = parse_canonical(*canonical);
  if (placement) options.placement = parse_placement(*placement);
  if (strategy) options.strategy = parse_strategy(*strategy);
  options.keep = parse_keep(keep);
  options.block = block;
  options.stripe = block;
  options.threads = threads;
  return options;
}

Array<std::uint8_t> bytes_of(std::span<const std::byte> bytes) {
  return to_array<std::uint8_t>(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

Plan from_bytes(const ArrayIn<std::uint8_t>& bytes) {
  return plan_from_bytes(std::as_bytes(to_span(bytes)));
}

auto balance_of(const Plan& plan, std::int32_t layer) {
  const Balance level = balance(plan, layer);
  return std::tuple(level.busiest_over_mean, level.step_busiest_over_mean, level.busiest_over_mean_pairs,
                    level.step_busiest_over_mean_pairs);
}

auto exchange_of(const Plan& plan, std::int32_t layer) {
  const ExchangeTokens tokens = exchange_tokens(plan, layer);
  return std::tuple(tokens.kv, tokens.ring_kv, tokens.allgather_kv);
}

std::vector<std::string> strategies_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const LayerPlan& layer : plan.layers) names.emplace_back(to_string(layer.strategy));
  return names;
}

}  // namespace

void bind_plan(nb::module_& module) {
  nb::class_<Model>(module, "Model")
      .def(nb::new_(&to_model), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("layers"),
           nb::arg("order_dependent"));
  nb::class_<Plan>(module, "Plan")
      .def_static("from_bytes", &from_bytes, nb::arg("bytes"))
      .def("to_bytes", [](const Plan& plan) { return bytes_of(to_bytes(plan)); })
      .def_ro("rows", &Plan::rows)
      .def_ro("block", &Plan::block)
      .def_ro("digest", &Plan::digest)
      .def_ro("ring_tokens", &Plan::ring_tokens)
      .def_prop_ro("layout", [](const Plan& plan) { return Layout(plan.layout); })
      .def_prop_ro("canonical", [](const Plan& plan) { return std::string(to_string(plan.canonical)); })
      .def_prop_ro("keep", [](const Plan& plan) { return std::string(to_string(plan.keep)); })
      .def_prop_ro("placement", [](const Plan& plan) { return std::string(to_string(plan.placement)); })
      .def_prop_ro("strategies", &strategies_of)
      .def(
          "rank_plan",
          [](const Plan& plan, std::int32_t rank, std::int32_t layer, int threads) {
            return bytes_of(make_rank_plan(plan, rank, layer, threads).bytes());
          },
          nb::arg("rank"), nb::arg("layer"), nb::arg("threads"))
      .def(
          "positions",
          [](const Plan& plan, std::int32_t rank) { return to_array<std::int64_t>(rank_positions(plan, rank)); },
          nb::arg("rank"))
      .def("balance", &balance_of, nb::arg("layer"))
      .def(
          "step_pairs", [](const Plan& plan, std::int32_t layer) { return step_pairs(plan, layer); }, nb::arg("layer"))
      .def("exchange_tokens", &exchange_of, nb::arg("layer"));
  module.def(
      "make_plan",
      [](const Layout& layout, const Model& model, std::int32_t ring, std::int32_t ulysses, std::int32_t ranks_per_node,
         const std::optional<std::string>& canonical, const std::optional<std::string>& placement,
         const std::optional<std::string>& strategy, const std::string& keep, std::int32_t block, int threads) {
        const Mesh mesh{.ring = ring, .ulysses = ulysses, .ranks_per_node = ranks_per_node};
        const PlanOptions options = to_options(canonical, placement, strategy, keep, block, threads);
        const nb::gil_scoped_release released;
        return make_plan(layout, model, mesh, options);
      },
      nb::arg("layout"), nb::arg("model"), nb::arg("ring"), nb::arg("ulysses"), nb::arg("ranks_per_node"),
      nb::arg("canonical").none(), nb::arg("placement").none(), nb::arg("strategy").none(), nb::arg("keep"),
      nb::arg("block"), nb::arg("threads"));
}

}  // namespace marble::python

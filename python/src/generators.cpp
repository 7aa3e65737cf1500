// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/generators.hpp"

#include "bindings.hpp"

#include <map>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace marble::python {
namespace {

std::vector<std::tuple<std::int64_t, std::int32_t>> layers_of(const GeneratorInfo& info) {
  std::vector<std::tuple<std::int64_t, std::int32_t>> layers;
  for (const GeneratorLayer& layer : info.layers) layers.emplace_back(layer.window, layer.count);
  return layers;
}

Layout generate_layout(const std::string& name, std::int64_t tokens, std::uint64_t seed,
                       const std::map<std::string, std::string>& parameters) {
  return generate(name, tokens, seed, GeneratorParameters(parameters.begin(), parameters.end()));
}

}  // namespace

void bind_generators(nb::module_& module) {
  nb::class_<GeneratorInfo>(module, "GeneratorInfo")
      .def_ro("name", &GeneratorInfo::name)
      .def_ro("model", &GeneratorInfo::model)
      .def_ro("description", &GeneratorInfo::description)
      .def_ro("heads", &GeneratorInfo::heads)
      .def_ro("kv_heads", &GeneratorInfo::kv_heads)
      .def_ro("head_dim", &GeneratorInfo::head_dim)
      .def_ro("softmax_scale", &GeneratorInfo::softmax_scale)
      .def_ro("order_dependent", &GeneratorInfo::order_dependent)
      .def_prop_ro("layers", &layers_of);
  module.def("generators", [] { return std::vector<GeneratorInfo>(generators().begin(), generators().end()); });
  module.def(
      "generator", [](const std::string& name) { return GeneratorInfo(generator(name)); }, nb::arg("name"));
  module.def("generate", &generate_layout, nb::arg("name"), nb::arg("tokens"), nb::arg("seed"), nb::arg("parameters"));
}

}  // namespace marble::python

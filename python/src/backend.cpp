// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/backend.hpp"

#include "bindings.hpp"
#include "lent_memory.hpp"

#include "marble/cuda.hpp"

#include <cstdint>
#include <memory>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace marble::python {

void bind_backend(nb::module_& module) {
  nb::class_<Backend>(module, "Backend")
      .def_prop_ro("name", [](const Backend& backend) { return std::string(backend.name()); })
      .def_prop_ro("tiles_computed", &Backend::tiles_computed);
  module.def("cpu_backend", &make_cpu_backend, nb::arg("threads"));
  module.def("cuda_available", &cuda_available);
  module.def(
      "cuda_backend",
      [](int device, std::uintptr_t stream, nb::object memory) {
        return make_cuda_backend(device, reinterpret_cast<void*>(stream),
                                 std::make_unique<LentMemory>(std::move(memory)));
      },
      nb::arg("device"), nb::arg("stream"), nb::arg("memory"));
}

}  // namespace marble::python

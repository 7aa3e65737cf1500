// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/transport.hpp"

#include "bindings.hpp"
#include "callback_transport.hpp"

#include <memory>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <string>

namespace nb = nanobind;

namespace marble::python {

void bind_transport(nb::module_& module) {
  nb::class_<Transport>(module, "Transport")
      .def_prop_ro("name", [](const Transport& transport) { return std::string(transport.name()); })
      .def_prop_ro("rank", &Transport::rank)
      .def_prop_ro("num_ranks", &Transport::num_ranks)
      .def_prop_ro("bytes_received", &Transport::bytes_received);
  module.def("callback_transport", &make_callback_transport, nb::arg("name"), nb::arg("rank"), nb::arg("num_ranks"),
             nb::arg("peers").none());
}

}  // namespace marble::python

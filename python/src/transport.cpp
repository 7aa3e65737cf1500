// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/transport.hpp"

#include "bindings.hpp"
#include "callback_transport.hpp"

#include "marble/backend.hpp"

#include <memory>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <string>

namespace nb = nanobind;

namespace marble::python {

namespace {

/// Messages name the backend's memory from here on, which the transport reads and writes through it.
void use_memory_of(Transport& transport, Backend& backend) {
  transport.set_memory_access({.read = [&](void* target, const void* source,
                                           std::int64_t bytes) { backend.copy_to_host(target, source, bytes); },
                               .write = [&](void* target, const void* source,
                                            std::int64_t bytes) { backend.copy_from_host(target, source, bytes); }});
}

}  // namespace

void bind_transport(nb::module_& module) {
  nb::class_<Transport>(module, "Transport")
      .def_prop_ro("name", [](const Transport& transport) { return std::string(transport.name()); })
      .def_prop_ro("rank", &Transport::rank)
      .def_prop_ro("num_ranks", &Transport::num_ranks)
      .def_prop_ro("bytes_received", &Transport::bytes_received)
      .def("use_memory_of", &use_memory_of, nb::arg("backend"), nb::keep_alive<1, 2>());
  module.def("callback_transport", &make_callback_transport, nb::arg("name"), nb::arg("rank"), nb::arg("num_ranks"),
             nb::arg("peers").none());
}

}  // namespace marble::python

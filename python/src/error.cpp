// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"

#include "bindings.hpp"

namespace nb = nanobind;

namespace marble::python {

void bind_error(nb::module_& module) {
  // Later registrations are tried first, so the base class comes first.
  const nb::exception<Error> base(module, "Error", PyExc_RuntimeError);
  base.attr("__doc__") = "What marble raises, but for bad arguments: those are ValueError or TypeError.";
  nb::exception<InternalError>(module, "InternalError", base.ptr()).attr("__doc__") =
      "A bug in marble: one of its own invariants does not hold.";
  nb::exception<BackendError>(module, "BackendError", base.ptr()).attr("__doc__") = "A device failed or lacks memory.";
  nb::exception<TransportError>(module, "TransportError", base.ptr()).attr("__doc__") =
      "Ranks failed to exchange messages: names the rank, the peer and the exchange.";
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const InvalidArgument& invalid) {
      PyErr_SetString(PyExc_ValueError, invalid.what());
    }
  });
}

}  // namespace marble::python

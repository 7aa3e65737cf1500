// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"

#include "bindings.hpp"

namespace nb = nanobind;

namespace marble::python {

void bind_error(nb::module_& module) {
  // Later registrations are tried first, so the base class comes first.
  nb::exception<Error> base(module, "Error", PyExc_RuntimeError);
  nb::exception<InternalError>(module, "InternalError", base.ptr());
  nb::exception<BackendError>(module, "BackendError", base.ptr());
  nb::exception<TransportError>(module, "TransportError", base.ptr());
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const InvalidArgument& invalid) {
      PyErr_SetString(PyExc_ValueError, invalid.what());
    }
  });
}

}  // namespace marble::python

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

NB_MODULE(_native, module) {
  nanobind::set_leak_warnings(false);  // what a program still holds at its end is its own business
  module.doc() = "MARBLE's C++ library, as marble's Python modules use it. Not a public interface.";
  marble::python::bind_error(module);
  marble::python::bind_layout(module);
  marble::python::bind_generators(module);
  marble::python::bind_plan(module);
  marble::python::bind_cost(module);
  marble::python::bind_backend(module);
  marble::python::bind_transport(module);
  marble::python::bind_attention(module);
}

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One function per public header, each in the file of its name; module.cpp calls them. Arguments that hot calls pass
// are integers (addresses, shapes, strides), so that no tensor library is linked or converted here.

#include <nanobind/nanobind.h>

namespace marble::python {

void bind_error(nanobind::module_& module);
void bind_layout(nanobind::module_& module);
void bind_generators(nanobind::module_& module);
void bind_plan(nanobind::module_& module);
void bind_cost(nanobind::module_& module);
void bind_backend(nanobind::module_& module);
void bind_transport(nanobind::module_& module);
void bind_attention(nanobind::module_& module);

}  // namespace marble::python

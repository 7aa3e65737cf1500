// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A backend whose workspace a Python object lends, as PyTorch's allocator does.

#include "marble/backend.hpp"

#include <memory>
#include <nanobind/nanobind.h>

namespace marble::python {

/// Hands every call to `inner`, except that `memory.allocate(bytes)` gives an address and `memory.free(address)` takes
/// it back. Destroy it with the GIL held.
[[nodiscard]] std::unique_ptr<Backend> make_lent_memory_backend(std::unique_ptr<Backend> inner,
                                                                nanobind::object memory);

}  // namespace marble::python

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory that a Python object lends, as PyTorch's allocator does.

#include "marble/cuda.hpp"

#include <cstdint>
#include <nanobind/nanobind.h>
#include <utility>

namespace marble::python {

/// `lender.allocate(bytes)` gives an address and `lender.free(address)` takes it back. Destroy it with the GIL held.
class LentMemory final : public DeviceMemory {
 public:
  explicit LentMemory(nanobind::object lender) : lender_(std::move(lender)) {}

  [[nodiscard]] void* allocate(std::int64_t bytes) override {
    const nanobind::gil_scoped_acquire held;
    return reinterpret_cast<void*>(nanobind::cast<std::uintptr_t>(lender_.attr("allocate")(bytes)));
  }
  void free(void* data) noexcept override {
    const nanobind::gil_scoped_acquire held;
    try {
      lender_.attr("free")(reinterpret_cast<std::uintptr_t>(data));
    } catch (nanobind::python_error& error) {
      error.discard_as_unraisable("marble: giving memory back");
    }
  }

 private:
  nanobind::object lender_;
};

}  // namespace marble::python

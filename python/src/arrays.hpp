// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// NumPy arrays from and to vectors.

#include <cstddef>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <span>
#include <utility>
#include <vector>

namespace marble::python {

template <typename T>
using Array = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

/// A dense, read-only argument on the host.
template <typename T>
using ArrayIn = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/// A NumPy array that owns the vector's memory.
template <typename Element, typename T>
Array<Element> to_array(std::vector<T> values) {
  static_assert(sizeof(Element) == sizeof(T));
  auto* const owned = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(owned, [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  return Array<Element>(owned->data(), {owned->size()}, owner);
}

template <typename T>
std::span<const T> to_span(const ArrayIn<T>& array) {
  return {array.data(), array.size()};
}

}  // namespace marble::python

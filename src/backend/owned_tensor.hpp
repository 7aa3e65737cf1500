// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A dense tensor in memory of a backend, given back at the end.

#include "marble/backend.hpp"
#include "marble/tensor.hpp"

#include <cstdint>

namespace marble {

class OwnedTensor {
 public:
  /// `backend` must outlive it.
  OwnedTensor(Backend& backend, DType dtype, std::int64_t rows, std::int32_t heads, std::int32_t dim)
      : backend_(backend), view_(dense_view(nullptr, dtype, rows, heads, dim)) {
    view_.data = backend.allocate(view_.bytes());
  }
  ~OwnedTensor() { backend_.free(view_.data); }
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;

  [[nodiscard]] const TensorView& view() const { return view_; }

 protected:
  Backend& backend_;
  TensorView view_;
};

}  // namespace marble

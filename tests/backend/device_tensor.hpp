// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tensors in a backend's memory whose every unused byte is guarded.

#include "backend/attention_case.hpp"

#include "marble/backend.hpp"

#include <cstddef>
#include <vector>

namespace marble::testing {

/// Memory of a backend, all bytes 0xff: NaN in every dtype.
class DeviceMemory {
 public:
  DeviceMemory(Backend& backend, std::int64_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  ~DeviceMemory();

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::vector<std::byte> read() const;
  void write(const std::vector<std::byte>& bytes);

 private:
  Backend* backend_;
  std::int64_t bytes_;
  void* data_;
};

/// What the rows beyond the valid ones must hold when a tensor is read.
enum class PadRows { untouched, zero };

/// A strided tensor with guard elements before and after it, odd offsets included.
class DeviceTensor {
 public:
  DeviceTensor(Backend& backend, DType dtype, std::int64_t valid_rows, std::int64_t rows, std::int32_t heads,
               std::int32_t dim, Strides strides);

  [[nodiscard]] const TensorView& view() const { return view_; }
  /// Writes the valid rows, given as dense [row][head][dim].
  void set(const std::vector<double>& values);
  /// The valid rows. Throws InternalError when anything else was written.
  [[nodiscard]] std::vector<double> get(PadRows pads = PadRows::untouched) const;

 private:
  [[nodiscard]] std::int64_t index(std::int64_t row, std::int32_t head, std::int32_t d) const;

  std::int64_t valid_rows_;
  TensorView view_;
  DeviceMemory memory_;
};

}  // namespace marble::testing

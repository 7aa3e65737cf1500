// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/device_tensor.hpp"

#include "base/numeric.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <utility>

namespace marble::testing {
namespace {

constexpr std::int64_t kGuard = 32;  // elements before and after a tensor

TensorView strided_view(DType dtype, std::int64_t rows, std::int32_t heads, std::int32_t dim, Strides strides) {
  TensorView view = dense_view(nullptr, dtype, rows, heads, dim);
  if (strides == Strides::gaps) {
    view.head_stride = dim + 8;
    view.row_stride = heads * view.head_stride + 16;
  } else if (strides == Strides::heads_outermost) {
    view.row_stride = dim;
    view.head_stride = rows * dim;
  }
  return view;
}

std::int64_t extent_bytes(const TensorView& view) {
  const std::int64_t last = (view.rows - 1) * view.row_stride + (view.heads - 1) * view.head_stride + view.dim;
  return (2 * kGuard + std::max<std::int64_t>(0, last)) * size_of(view.dtype);
}

}  // namespace

DeviceMemory::DeviceMemory(Backend& backend, std::int64_t bytes)
    : backend_(&backend), bytes_(bytes), data_(backend.allocate(bytes)) {
  write(std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xff}));
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : backend_(other.backend_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) backend_->free(data_);
}

std::vector<std::byte> DeviceMemory::read() const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_));
  backend_->copy_to_host(bytes.data(), data_, bytes_);
  backend_->synchronize();
  return bytes;
}

void DeviceMemory::write(const std::vector<std::byte>& bytes) {
  backend_->copy_from_host(data_, bytes.data(), static_cast<std::int64_t>(bytes.size()));
  backend_->synchronize();
}

DeviceTensor::DeviceTensor(Backend& backend, DType dtype, std::int64_t valid_rows, std::int64_t rows,
                           std::int32_t heads, std::int32_t dim, Strides strides)
    : valid_rows_(valid_rows),
      view_(strided_view(dtype, rows, heads, dim, strides)),
      memory_(backend, extent_bytes(view_)) {
  view_.data = static_cast<std::byte*>(memory_.data()) + kGuard * size_of(dtype);
}

std::int64_t DeviceTensor::index(std::int64_t row, std::int32_t head, std::int32_t d) const {
  return kGuard + row * view_.row_stride + head * view_.head_stride + d;
}

void DeviceTensor::set(const std::vector<double>& values) {
  std::vector<std::byte> bytes = memory_.read();
  std::size_t next = 0;
  for (std::int64_t row = 0; row < valid_rows_; ++row)
    for (std::int32_t head = 0; head < view_.heads; ++head)
      for (std::int32_t d = 0; d < view_.dim; ++d)
        store_element(bytes.data(), view_.dtype, index(row, head, d), static_cast<float>(values[next++]));
  ensure(next == values.size(), "{} values for {} elements", values.size(), next);
  memory_.write(bytes);
}

std::vector<double> DeviceTensor::get(PadRows pads) const {
  std::vector<std::byte> bytes = memory_.read();
  const auto size = static_cast<std::size_t>(size_of(view_.dtype));
  std::vector<double> values;
  for (std::int64_t row = 0; row < view_.rows; ++row)
    for (std::int32_t head = 0; head < view_.heads; ++head)
      for (std::int32_t d = 0; d < view_.dim; ++d) {
        const std::int64_t at = index(row, head, d);
        const float value = load_element(bytes.data(), view_.dtype, at);
        if (row < valid_rows_) values.push_back(static_cast<double>(value));
        if (row >= valid_rows_ && pads == PadRows::untouched) continue;
        ensure(row < valid_rows_ || value == 0.0F, "pad row {} holds {}, not 0", row, value);
        std::fill_n(bytes.begin() + at * static_cast<std::ptrdiff_t>(size), size, std::byte{0xff});
      }
  for (std::size_t i = 0; i < bytes.size(); ++i)
    ensure(bytes[i] == std::byte{0xff}, "byte {} beside the tensor's valid rows was written", i);
  return values;
}

std::vector<double> rounded(const std::vector<double>& values, DType dtype) {
  std::vector<double> result;
  for (double value : values) {
    float stored = 0.0F;
    store_element(&stored, dtype, 0, static_cast<float>(value));
    result.push_back(static_cast<double>(load_element(&stored, dtype, 0)));
  }
  return result;
}

}  // namespace marble::testing

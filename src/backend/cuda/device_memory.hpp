// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory, and the way of host arrays into it without waiting for the device.

#include "marble/cuda.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace marble::cuda {

/// cudaMalloc and cudaFree.
class OwnMemory final : public DeviceMemory {
 public:
  [[nodiscard]] void* allocate(std::int64_t bytes) override;
  void free(void* data) noexcept override;
};

/// Device memory that frees itself; its source must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t bytes);
  DeviceBuffer(std::int64_t bytes, DeviceMemory& source);

  [[nodiscard]] void* data() const { return data_.get(); }
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_.get());
  }

 private:
  struct Free {
    DeviceMemory* source;
    void operator()(void* data) const noexcept { source->free(data); }
  };
  std::unique_ptr<void, Free> data_;
};

/// Copies host arrays to the device in the order of a stream. They pass through pinned memory, which is used again once
/// the stream has read it, so that nobody waits.
class Uploads {
 public:
  Uploads(cudaStream_t stream, DeviceMemory& memory) : stream_(stream), memory_(memory) {}

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] DeviceBuffer allocate(std::int64_t bytes) { return DeviceBuffer(bytes, memory_); }

  template <typename T>
  [[nodiscard]] DeviceBuffer upload(std::span<const T> values) {
    DeviceBuffer buffer = allocate(static_cast<std::int64_t>(values.size_bytes()));
    if (!values.empty()) copy(buffer.data(), std::as_bytes(values));
    return buffer;
  }

 private:
  struct FreePinned {
    void operator()(std::byte* data) const noexcept { cudaFreeHost(data); }
  };
  struct DestroyEvent {
    void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
  };
  /// Pinned memory, and the point in the stream from which on it is free.
  struct Block {
    std::unique_ptr<std::byte, FreePinned> data;
    std::size_t bytes = 0;
    std::unique_ptr<CUevent_st, DestroyEvent> is_read;
  };

  void copy(void* target, std::span<const std::byte> bytes);
  [[nodiscard]] Block& free_block(std::size_t bytes);

  cudaStream_t stream_;
  DeviceMemory& memory_;
  std::vector<Block> blocks_;
};

}  // namespace marble::cuda

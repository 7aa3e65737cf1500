// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/nccl/device.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <string_view>
#include <vector>

namespace marble::nccl {

/// Throws BackendError with the device's own words unless `status` is success.
void check_cuda(cudaError_t status, std::string_view what);

class CudaDevice final : public Device {
 public:
  /// `compute` outlives it.
  CudaDevice(int device, cudaStream_t compute);
  ~CudaDevice() override;

  /// Why streams of this device cannot wait for words while others work; empty: they can.
  [[nodiscard]] std::string why_no_waits() const;
  [[nodiscard]] int index() const { return device_; }
  [[nodiscard]] cudaStream_t stream(Queue queue) const {
    return queue == kCompute ? compute_ : sides_[static_cast<std::size_t>(queue - 1)];
  }

  void select() override;
  [[nodiscard]] bool is_device_memory(const void* data) const override;
  [[nodiscard]] bool is_one_allocation(const void* data, std::int64_t bytes) const override;
  [[nodiscard]] bool is_capturing() const override;
  void enqueue(Queue queue, std::span<const WordOp> ops) override;
  void copy(Queue queue, void* target, const void* source, std::int64_t bytes) override;
  [[nodiscard]] std::unique_ptr<Mark> mark(Queue queue) override;
  void follow(Queue queue, const Mark& mark) override;
  void make_side_queues(std::int32_t count) override;
  void renew(Queue queue) override;
  [[nodiscard]] bool is_idle(Queue queue) override;
  void synchronize(Queue queue) override;
  [[nodiscard]] void* allocate(std::int64_t bytes) override;
  void free(void* data) noexcept override;
  [[nodiscard]] MemoryHandle export_memory(void* data) override;
  [[nodiscard]] void* open_memory(const MemoryHandle& handle) override;
  void close_memory(void* data) noexcept override;
  void register_words(void* data, std::int64_t bytes) override;
  void unregister_words(void* data) noexcept override;

 private:
  [[nodiscard]] cudaStream_t make_stream();
  [[nodiscard]] CUdeviceptr device_address(const Word* word) const;

  int device_;
  cudaStream_t compute_;
  std::vector<cudaStream_t> sides_;
  std::vector<cudaStream_t> made_;  // all that are to be destroyed
  std::byte* words_ = nullptr;      // registered
  std::int64_t words_bytes_ = 0;
  std::byte* device_words_ = nullptr;  // the same memory, as the device addresses it
};

}  // namespace marble::nccl

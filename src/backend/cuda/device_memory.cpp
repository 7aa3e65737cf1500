// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/device_memory.hpp"

#include "backend/cuda/cuda_error.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace marble::cuda {
namespace {

OwnMemory& own_memory() {
  static OwnMemory memory;  // has no state
  return memory;
}

bool has_passed(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) static_cast<void>(cudaGetLastError());  // which a launch would be blamed for
  return status == cudaSuccess;
}

}  // namespace

void* OwnMemory::allocate(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status != cudaSuccess) check_cuda(status, fmt::format("allocating {} bytes on the GPU", bytes));
  return data;
}

void OwnMemory::free(void* data) noexcept {
  cudaFree(data);
}

DeviceBuffer::DeviceBuffer(std::int64_t bytes) : DeviceBuffer(bytes, own_memory()) {}

DeviceBuffer::DeviceBuffer(std::int64_t bytes, DeviceMemory& source)
    : data_(bytes == 0 ? nullptr : source.allocate(bytes), Free{&source}) {}

void Uploads::copy(void* target, std::span<const std::byte> bytes) {
  const Block& block = free_block(bytes.size());
  std::memcpy(block.data.get(), bytes.data(), bytes.size());
  check_cuda(cudaMemcpyAsync(target, block.data.get(), bytes.size(), cudaMemcpyHostToDevice, stream_),
             "copying to the GPU");
  check_cuda(cudaEventRecord(block.is_read.get(), stream_), "marking what was copied");
}

Uploads::Block& Uploads::free_block(std::size_t bytes) {
  const auto found = std::ranges::find_if(
      blocks_, [&](const Block& block) { return block.bytes >= bytes && has_passed(block.is_read.get()); });
  if (found != blocks_.end()) return *found;
  constexpr std::size_t kSmallest = 4096;
  Block block{.bytes = std::bit_ceil(std::max(bytes, kSmallest))};
  void* data = nullptr;
  check_cuda(cudaMallocHost(&data, block.bytes), "allocating pinned memory");
  block.data.reset(static_cast<std::byte*>(data));
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  block.is_read.reset(event);
  return blocks_.emplace_back(std::move(block));
}

}  // namespace marble::cuda

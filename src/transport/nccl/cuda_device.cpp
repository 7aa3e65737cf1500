// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/cuda_device.hpp"

#include "marble/error.hpp"

#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace marble::nccl {
namespace {

/// A function of the driver, found through the runtime, so that the library loads where no driver is installed.
template <typename Function>
Function driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found),
             fmt::format("looking for {}", name));
  if (found != cudaDriverEntryPointSuccess || entry == nullptr)
    throw BackendError(fmt::format("the CUDA driver has no {}; transport nccl needs driver 12.0 or newer", name));
  return reinterpret_cast<Function>(entry);
}

void check_driver(CUresult result, std::string_view what) {
  if (result != CUDA_SUCCESS) throw BackendError(fmt::format("{} failed with code {}", what, static_cast<int>(result)));
}

class CudaMark final : public Mark {
 public:
  CudaMark() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
  ~CudaMark() override { cudaEventDestroy(event_); }
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

bool has_word_ops(int device) {
  using GetAttribute = CUresult (*)(int*, CUdevice_attribute, CUdevice);
  int value = 0;
  const auto get = driver_function<GetAttribute>("cuDeviceGetAttribute");
  return get(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) == CUDA_SUCCESS && value != 0;
}

}  // namespace

void check_cuda(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  throw BackendError(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

CudaDevice::CudaDevice(int device, cudaStream_t compute) : device_(device), compute_(compute) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "looking for GPUs");
  require(device >= 0 && device < count, "device {} is not one of the {} GPUs", device, count);
  select();
}

CudaDevice::~CudaDevice() {
  for (cudaStream_t stream : made_) cudaStreamDestroy(stream);
}

/// Above the backend's kernels where both want to run.
cudaStream_t CudaDevice::make_stream() {
  int lowest = 0, highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "reading stream priorities");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "making a stream");
  made_.push_back(stream);
  return stream;
}

void CudaDevice::make_side_queues(std::int32_t count) {
  sides_.clear();
  for (std::int32_t i = 0; i < count; ++i) sides_.push_back(make_stream());
}

void CudaDevice::renew(Queue queue) {
  sides_[static_cast<std::size_t>(queue - 1)] = make_stream();
}

bool CudaDevice::is_idle(Queue queue) {
  return cudaStreamQuery(stream(queue)) != cudaErrorNotReady;
}

std::string CudaDevice::why_no_waits() const {
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections != nullptr && std::string_view(connections) == "1")
    return "CUDA_DEVICE_MAX_CONNECTIONS is 1, so that a stream that waits holds up all others";
  if (!has_word_ops(device_)) return fmt::format("streams of device {} cannot wait for 64-bit values", device_);
  return {};
}

void CudaDevice::select() {
  check_cuda(cudaSetDevice(device_), "selecting the GPU");
}

bool CudaDevice::is_device_memory(const void* data) const {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, data), "looking at a message's memory");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

bool CudaDevice::is_one_allocation(const void* data, std::int64_t bytes) const {
  using GetAddressRange = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
  static const auto get = driver_function<GetAddressRange>("cuMemGetAddressRange");
  const auto begin = reinterpret_cast<CUdeviceptr>(data);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  check_driver(get(&base, &size, begin), "cuMemGetAddressRange");
  return begin + static_cast<CUdeviceptr>(bytes) <= base + size;
}

bool CudaDevice::is_capturing() const {
  cudaStreamCaptureStatus status{};
  // The default stream cannot be asked while another is captured, nor take part in it.
  return cudaStreamIsCapturing(compute_, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

/// Of a word in registered host memory, or in the device's own.
CUdeviceptr CudaDevice::device_address(const Word* word) const {
  const auto* const data = reinterpret_cast<const std::byte*>(word);
  const bool is_registered = data >= words_ && data < words_ + words_bytes_;
  return reinterpret_cast<CUdeviceptr>(is_registered ? device_words_ + (data - words_) : data);
}

void CudaDevice::enqueue(Queue queue, std::span<const WordOp> ops) {
  std::vector<CUstreamBatchMemOpParams> params(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const CUdeviceptr address = device_address(ops[i].word);
    std::memset(&params[i], 0, sizeof(params[i]));
    if (ops[i].kind == WordOp::Kind::write) {
      params[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
      params[i].writeValue.address = address;
      params[i].writeValue.value64 = ops[i].value;
    } else {
      params[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
      params[i].waitValue.address = address;
      params[i].waitValue.value64 = ops[i].value;
      params[i].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    }
  }
  using BatchMemOp = CUresult (*)(CUstream, unsigned int, CUstreamBatchMemOpParams*, unsigned int);
  static const auto batch = driver_function<BatchMemOp>("cuStreamBatchMemOp");
  check_driver(batch(stream(queue), static_cast<unsigned int>(params.size()), params.data(), 0), "cuStreamBatchMemOp");
}

void CudaDevice::copy(Queue queue, void* target, const void* source, std::int64_t bytes) {
  check_cuda(cudaMemcpyAsync(target, source, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream(queue)),
             "copying between GPUs");
}

std::unique_ptr<Mark> CudaDevice::mark(Queue queue) {
  auto mark = std::make_unique<CudaMark>();
  check_cuda(cudaEventRecord(mark->get(), stream(queue)), "recording an event");
  return mark;
}

void CudaDevice::follow(Queue queue, const Mark& mark) {
  check_cuda(cudaStreamWaitEvent(stream(queue), dynamic_cast<const CudaMark&>(mark).get(), 0), "following an event");
}

void CudaDevice::synchronize(Queue queue) {
  check_cuda(cudaStreamSynchronize(stream(queue)), "waiting for the GPU");
}

void* CudaDevice::allocate(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status != cudaSuccess) check_cuda(status, fmt::format("allocating {} bytes on the GPU", bytes));
  return data;
}

void CudaDevice::free(void* data) noexcept {
  cudaFree(data);
}

MemoryHandle CudaDevice::export_memory(void* data) {
  cudaIpcMemHandle_t handle;
  check_cuda(cudaIpcGetMemHandle(&handle, data), "naming memory to other processes");
  MemoryHandle bytes;
  static_assert(sizeof(handle) == sizeof(bytes));
  std::memcpy(bytes.data(), &handle, sizeof(handle));
  return bytes;
}

void* CudaDevice::open_memory(const MemoryHandle& bytes) {
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  void* data = nullptr;
  check_cuda(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess), "mapping memory of another process");
  return data;
}

void CudaDevice::close_memory(void* data) noexcept {
  cudaIpcCloseMemHandle(data);
}

void CudaDevice::register_words(void* data, std::int64_t bytes) {
  check_cuda(cudaHostRegister(data, static_cast<std::size_t>(bytes), cudaHostRegisterPortable | cudaHostRegisterMapped),
             "registering host memory");
  void* device_data = nullptr;
  check_cuda(cudaHostGetDevicePointer(&device_data, data, 0), "addressing host memory");
  words_ = static_cast<std::byte*>(data);
  words_bytes_ = bytes;
  device_words_ = static_cast<std::byte*>(device_data);
}

void CudaDevice::unregister_words(void* data) noexcept {
  cudaHostUnregister(data);
}

}  // namespace marble::nccl

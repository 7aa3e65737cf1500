// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/nccl_library.hpp"

#include "transport/nccl/nccl_functions.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace marble::nccl {
namespace {

using std::chrono::steady_clock;

class NcclCommunicator;

class NcclCommWindow final : public Window {
 public:
  NcclCommWindow(NcclCommunicator& communicator, std::int64_t bytes);
  ~NcclCommWindow() override;
  NcclCommWindow(const NcclCommWindow&) = delete;
  NcclCommWindow& operator=(const NcclCommWindow&) = delete;

  [[nodiscard]] std::byte* data() const override { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

  NcclWindow handle = nullptr;  // once opened

 private:
  NcclCommunicator& communicator_;
  void* data_ = nullptr;
  std::int64_t bytes_;
};

/// Not blocking: calls come back at once, and what they do on other threads is awaited within a limit.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(NcclLoaded& nccl, CudaDevice& device, const Failure& failure)
      : nccl_(nccl), device_(device), failure_(failure) {}

  ~NcclCommunicator() override {
    constexpr std::chrono::seconds kLimit{2};
    if (comm_ == nullptr) return;
    try {
      check(nccl_.call.comm_finalize(comm_), "ncclCommFinalize");
      if (await(steady_clock::now() + kLimit)) {
        nccl_.call.comm_destroy(std::exchange(comm_, nullptr));
        return;
      }
    } catch (const Error&) {  // then without the others
    }
    abort();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void join(const std::string& id, std::int32_t rank, std::int32_t num_ranks, Deadline deadline) {
    NcclUniqueId unique{};
    std::memcpy(unique.bytes.data(), id.data(), std::min(id.size(), unique.bytes.size()));
    NcclConfig config;
    check(nccl_.call.comm_init_rank_config(&comm_, num_ranks, unique, rank, &config), "ncclCommInitRankConfig");
    await_all(deadline, "ncclCommInitRankConfig");
  }

  [[nodiscard]] bool send_recv(Queue queue, std::span<const Message> sends, std::span<const Message> recvs) override {
    return group([&] {
      for (const Message& message : sends)
        check(nccl_.call.send(message.data, size(message.bytes), kNcclBytes, message.peer, comm_, stream(queue)),
              "ncclSend");
      for (const Message& message : recvs)
        check(nccl_.call.recv(message.data, size(message.bytes), kNcclBytes, message.peer, comm_, stream(queue)),
              "ncclRecv");
    });
  }

  [[nodiscard]] bool put(Queue queue, std::span<const Put> puts) override {
    return group([&] {
      for (const Put& put : puts)
        check(nccl_.call.put_signal(put.source, size(put.bytes), kNcclBytes, put.peer,
                                    dynamic_cast<const NcclCommWindow&>(*put.target).handle, size(put.offset), 0, 0, 0,
                                    comm_, stream(queue)),
              "ncclPutSignal");
    });
  }

  [[nodiscard]] std::unique_ptr<Window> allocate_window(std::int64_t bytes) override {
    return std::make_unique<NcclCommWindow>(*this, bytes);
  }

  void open(Window& window, Deadline deadline) override {
    NcclWindow& handle = dynamic_cast<NcclCommWindow&>(window).handle;
    check(nccl_.call.comm_window_register(comm_, window.data(), size(window.bytes()), &handle,
                                          kNcclSymmetric | kNcclStrictOrdering),
          "ncclCommWindowRegister");
    await_all(deadline, "ncclCommWindowRegister");
    if (handle == nullptr) throw BackendError("NCCL has no windows between these GPUs");
  }

  void abort() noexcept override {
    if (comm_ != nullptr) nccl_.call.comm_abort(std::exchange(comm_, nullptr));
  }

  // Of its windows.
  [[nodiscard]] NcclLoaded& nccl() { return nccl_; }
  [[nodiscard]] NcclComm get() const { return comm_; }

 private:
  [[nodiscard]] static std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }
  [[nodiscard]] cudaStream_t stream(Queue queue) const { return device_.stream(queue); }
  void check(NcclResult result, const char* call) const { nccl_.check(result, call, comm_); }

  template <typename Fn>
  [[nodiscard]] bool group(Fn&& fn) {
    check(nccl_.call.group_start(), "ncclGroupStart");
    try {
      fn();
    } catch (const Error&) {
      nccl_.call.group_end();
      throw;
    }
    check(nccl_.call.group_end(), "ncclGroupEnd");
    return await(Deadline::max());
  }

  /// True when what NCCL was asked for has been done, false at the deadline or when the transport has failed.
  [[nodiscard]] bool await(Deadline deadline) const {
    constexpr std::chrono::microseconds kPause{5};
    while (true) {
      NcclResult result = kNcclSuccess;
      check(nccl_.call.comm_get_async_error(comm_, &result), "ncclCommGetAsyncError");
      check(result, "NCCL");
      if (result == kNcclSuccess) return true;
      if (failure_.happened() || steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(kPause);
    }
  }
  void await_all(Deadline deadline, const char* call) const {
    if (!await(deadline)) throw BackendError(fmt::format("NCCL's ranks did not all come to {} in time", call));
  }

  NcclLoaded& nccl_;
  CudaDevice& device_;
  const Failure& failure_;
  NcclComm comm_ = nullptr;
};

NcclCommWindow::NcclCommWindow(NcclCommunicator& communicator, std::int64_t bytes)
    : communicator_(communicator), bytes_(bytes) {
  communicator_.nccl().check(communicator_.nccl().call.mem_alloc(&data_, static_cast<std::size_t>(bytes)),
                             "ncclMemAlloc");
}

NcclCommWindow::~NcclCommWindow() {
  const NcclFunctions& call = communicator_.nccl().call;
  if (handle != nullptr && communicator_.get() != nullptr) call.comm_window_deregister(communicator_.get(), handle);
  call.mem_free(data_);
}

class NcclLibrary final : public Library {
 public:
  NcclLibrary(const std::string& path, CudaDevice& device) : nccl_(path), device_(device) {}

  [[nodiscard]] std::string describe() const override {
    return fmt::format("NCCL {} ({})", nccl_.version(), nccl_.path());
  }

  [[nodiscard]] std::string why_no_put() const override {
    return nccl_.call.has_puts() ? "" : fmt::format("NCCL {} is older than 2.29.2", nccl_.version());
  }

  [[nodiscard]] std::string make_id() override {
    NcclUniqueId id{};
    nccl_.check(nccl_.call.get_unique_id(&id), "ncclGetUniqueId");
    return {id.bytes.data(), id.bytes.size()};
  }

  [[nodiscard]] std::unique_ptr<Communicator> join(const std::string& id, std::int32_t rank, std::int32_t num_ranks,
                                                   const Failure& failure, Deadline deadline) override {
    auto communicator = std::make_unique<NcclCommunicator>(nccl_, device_, failure);
    communicator->join(id, rank, num_ranks, deadline);
    return communicator;
  }

 private:
  NcclLoaded nccl_;
  CudaDevice& device_;
};

}  // namespace

std::unique_ptr<Library> find_nccl(const std::string& path, CudaDevice& device) {
  return std::make_unique<NcclLibrary>(path, device);
}

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/nccl_library.hpp"

#include "transport/nccl/nccl_functions.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
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

/// Calls of a communicator for sends come back at once, and what they do on a thread of NCCL's is awaited. Those of one
/// for puts do their work themselves, which takes a tenth of the time; only what ranks do together can keep them, and
/// runs on a thread that is left behind when that takes too long.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(NcclLoaded& nccl, CudaDevice& device, const Failure& failure, bool blocks)
      : nccl_(nccl), device_(device), failure_(failure), blocks_(blocks) {}

  ~NcclCommunicator() override {
    if (get() == nullptr) return;
    if (!failure_.happened()) leave(steady_clock::now() + std::chrono::seconds(2));
    abort();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void join(const std::string& id, std::int32_t rank, std::int32_t num_ranks, Deadline deadline) {
    NcclUniqueId unique{};
    std::memcpy(unique.bytes.data(), id.data(), std::min(id.size(), unique.bytes.size()));
    const auto made = std::make_shared<NcclComm>(nullptr);
    comm_ = made;
    together(deadline, "ncclCommInitRankConfig",
             [=, call = nccl_.call.comm_init_rank_config, config = NcclConfig(blocks_)]() mutable {
               return call(made.get(), num_ranks, unique, rank, &config);
             });
  }

  [[nodiscard]] bool send_recv(Queue queue, std::span<const Message> sends, std::span<const Message> recvs) override {
    return group([&] {
      for (const Message& message : sends)
        check(nccl_.call.send(message.data, size(message.bytes), kNcclBytes, message.peer, get(), stream(queue)),
              "ncclSend");
      for (const Message& message : recvs)
        check(nccl_.call.recv(message.data, size(message.bytes), kNcclBytes, message.peer, get(), stream(queue)),
              "ncclRecv");
    });
  }

  [[nodiscard]] bool put(Queue queue, std::span<const Put> puts) override {
    return group([&] {
      for (const Put& put : puts)
        check(nccl_.call.put_signal(put.source, size(put.bytes), kNcclBytes, put.peer,
                                    dynamic_cast<const NcclCommWindow&>(*put.target).handle, size(put.offset), 0, 0, 0,
                                    get(), stream(queue)),
              "ncclPutSignal");
    });
  }

  [[nodiscard]] std::unique_ptr<Window> allocate_window(std::int64_t bytes) override {
    return std::make_unique<NcclCommWindow>(*this, bytes);
  }

  void open(Window& window, Deadline deadline) override {
    const auto handle = std::make_shared<NcclWindow>(nullptr);
    together(
        deadline, "ncclCommWindowRegister",
        [=, call = nccl_.call.comm_window_register, comm = get(), data = window.data(), bytes = size(window.bytes())] {
          return call(comm, data, bytes, handle.get(), kNcclSymmetric | kNcclStrictOrdering);
        });
    if (*handle == nullptr) throw BackendError("NCCL has no windows between these GPUs");
    dynamic_cast<NcclCommWindow&>(window).handle = *handle;
  }

  void abort() noexcept override {
    if (get() != nullptr) nccl_.call.comm_abort(std::exchange(*comm_, nullptr));
  }

  // Of its windows.
  [[nodiscard]] NcclLoaded& nccl() { return nccl_; }
  [[nodiscard]] NcclComm get() const { return comm_ ? *comm_ : nullptr; }

 private:
  [[nodiscard]] static std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }
  [[nodiscard]] cudaStream_t stream(Queue queue) const { return device_.stream(queue); }
  void check(NcclResult result, const char* call) const { nccl_.check(result, call, get()); }
  [[nodiscard]] bool is_over(Deadline deadline) const { return failure_.happened() || steady_clock::now() > deadline; }

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
    return blocks_ || await(Deadline::max());
  }

  /// True when what NCCL was asked for has been done, false at the deadline or when the transport has failed.
  [[nodiscard]] bool await(Deadline deadline) const {
    constexpr std::chrono::microseconds kPause{5};
    while (true) {
      NcclResult result = kNcclSuccess;
      check(nccl_.call.comm_get_async_error(get(), &result), "ncclCommGetAsyncError");
      check(result, "NCCL");
      if (result == kNcclSuccess) return true;
      if (is_over(deadline)) return false;
      std::this_thread::sleep_for(kPause);
    }
  }

  /// With the other ranks, if they come in time. A thread that is left behind leaves by itself.
  void leave(Deadline deadline) {
    const auto comm = comm_;
    if (blocks_) comm_.reset();
    try {
      together(
          deadline, "ncclCommFinalize",
          [finalize = nccl_.call.comm_finalize, destroy = nccl_.call.comm_destroy, comm = *comm, blocks = blocks_] {
            const NcclResult result = finalize(comm);
            if (blocks) destroy(comm);
            return result;
          });
      if (!blocks_) nccl_.call.comm_destroy(std::exchange(*comm, nullptr));
    } catch (const Error&) {  // then without them
    }
  }

  /// A call that all ranks make. Throws BackendError when it is refused, or not done at the deadline. `fn` owns what it
  /// uses.
  template <typename Fn>
  void together(Deadline deadline, const char* call, Fn fn) {
    const std::optional<NcclResult> result = blocks_ ? on_a_thread(deadline, std::move(fn)) : fn();
    if (!result) comm_.reset();  // the thread's
    if (result) check(*result, call);
    if (!result || !(blocks_ || await(deadline)))
      throw BackendError(fmt::format("NCCL's ranks did not all come to {} in time", call));
  }

  /// Nothing: it is still on its way, on a thread that is left behind.
  template <typename Fn>
  [[nodiscard]] std::optional<NcclResult> on_a_thread(Deadline deadline, Fn fn) const {
    std::packaged_task<NcclResult()> task([device = device_.index(), fn = std::move(fn)]() mutable {
      cudaSetDevice(device);
      return fn();
    });
    auto result = task.get_future();
    std::thread thread(std::move(task));
    while (result.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      if (!is_over(deadline)) continue;
      thread.detach();
      return std::nullopt;
    }
    thread.join();
    return result.get();
  }

  NcclLoaded& nccl_;
  CudaDevice& device_;
  const Failure& failure_;
  bool blocks_;
  std::shared_ptr<NcclComm> comm_ = {};
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

  [[nodiscard]] std::unique_ptr<Communicator> join(Traffic traffic, const std::string& id, std::int32_t rank,
                                                   std::int32_t num_ranks, const Failure& failure,
                                                   Deadline deadline) override {
    auto communicator = std::make_unique<NcclCommunicator>(nccl_, device_, failure, traffic == Traffic::put);
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

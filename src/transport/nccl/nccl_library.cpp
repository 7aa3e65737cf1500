// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/nccl_library.hpp"

#include "marble/error.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <thread>
#include <utility>

namespace marble::nccl {
namespace {

// What we use of nccl.h, whose names and values NCCL keeps from version to version.
using Comm = struct ncclComm*;
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInProgress = 7;
constexpr int kBytes = 0;  // ncclInt8
struct UniqueId {
  std::array<char, 128> bytes;
};
/// The first fields of ncclConfig_t, which have stayed; `size` tells NCCL that there are no others, and `version`
/// that they are those of 2.14.
struct Config {
  static constexpr unsigned int kMagic = 0xcafebeef;
  static constexpr unsigned int kVersion = 21'400;
  std::size_t size = sizeof(Config);
  unsigned int magic = kMagic;
  unsigned int version = kVersion;
  int blocking = 0;
  int padding = 0;
};

struct Functions {
  Result (*get_version)(int*);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank_config)(Comm*, int, UniqueId, int, Config*);
  Result (*comm_finalize)(Comm);
  Result (*comm_destroy)(Comm);
  Result (*comm_abort)(Comm);
  Result (*comm_get_async_error)(Comm, Result*);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void*, std::size_t, int, int, Comm, cudaStream_t);
  Result (*recv)(void*, std::size_t, int, int, Comm, cudaStream_t);
  const char* (*get_error_string)(Result);
};

void close_library(void* handle) {
  if (handle != nullptr) dlclose(handle);
}

class NcclLibrary final : public Library {
 public:
  NcclLibrary(const std::string& path, CudaDevice& device) : device_(device) {
    constexpr const char* kName = "libnccl.so.2";
    if (!path.empty())
      handle_.reset(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
    else if (handle_.reset(dlopen(kName, RTLD_NOW | RTLD_NOLOAD)); !handle_)
      handle_.reset(dlopen(kName, RTLD_NOW | RTLD_LOCAL));
    if (!handle_) throw BackendError(fmt::format("no NCCL: {}", dlerror()));
    find_functions();
    constexpr int kOldest = 21'400;
    check(nccl.get_version(&version_), "ncclGetVersion");
    if (version_ < kOldest) throw BackendError(fmt::format("{} is older than 2.14", describe()));
  }

  [[nodiscard]] std::string describe() const override {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(nccl.get_version), &info);
    constexpr int kMajor = 10'000, kMinor = 100;
    return fmt::format("NCCL {}.{}.{} ({})", version_ / kMajor, version_ % kMajor / kMinor, version_ % kMinor,
                       info.dli_fname != nullptr ? info.dli_fname : "?");
  }

  [[nodiscard]] std::string make_id() override {
    UniqueId id{};
    check(nccl.get_unique_id(&id), "ncclGetUniqueId");
    return {id.bytes.data(), id.bytes.size()};
  }

  [[nodiscard]] std::unique_ptr<Courier> join(const std::string& id, std::int32_t rank, std::int32_t num_ranks,
                                              const Failure& failure, Deadline deadline) override;

  void check(Result result, std::string_view call) const {
    if (result != kSuccess && result != kInProgress)
      throw BackendError(fmt::format("{}: {}", call, nccl.get_error_string(result)));
  }

  Functions nccl{};

 private:
  template <typename F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle_.get(), name));
    if (function == nullptr) throw BackendError(fmt::format("this NCCL has no {}; version 2.14 or newer has", name));
  }

  void find_functions() {
    find(nccl.get_version, "ncclGetVersion");
    find(nccl.get_unique_id, "ncclGetUniqueId");
    find(nccl.comm_init_rank_config, "ncclCommInitRankConfig");
    find(nccl.comm_finalize, "ncclCommFinalize");
    find(nccl.comm_destroy, "ncclCommDestroy");
    find(nccl.comm_abort, "ncclCommAbort");
    find(nccl.comm_get_async_error, "ncclCommGetAsyncError");
    find(nccl.group_start, "ncclGroupStart");
    find(nccl.group_end, "ncclGroupEnd");
    find(nccl.send, "ncclSend");
    find(nccl.recv, "ncclRecv");
    find(nccl.get_error_string, "ncclGetErrorString");
  }

  CudaDevice& device_;
  std::unique_ptr<void, decltype(&close_library)> handle_{nullptr, &close_library};
  int version_ = 0;
};

/// Sends and receives of one exchange are one group, asked for in the order of beginning: NCCL pairs them in the order
/// of each rank's stream, so ranks begin all exchanges in one order.
class SendRecvCourier final : public Courier {
 public:
  SendRecvCourier(NcclLibrary& library, CudaDevice& device, const Failure& failure)
      : library_(library), device_(device), failure_(failure) {}

  ~SendRecvCourier() override {
    constexpr std::chrono::seconds kLimit{2};
    if (comm_ == nullptr) return;
    try {
      library_.check(library_.nccl.comm_finalize(comm_), "ncclCommFinalize");
      if (await(std::chrono::steady_clock::now() + kLimit)) {
        library_.nccl.comm_destroy(std::exchange(comm_, nullptr));
        return;
      }
    } catch (const Error&) {  // then without the others
    }
    abort();
  }
  SendRecvCourier(const SendRecvCourier&) = delete;
  SendRecvCourier& operator=(const SendRecvCourier&) = delete;

  void join(const std::string& id, std::int32_t rank, std::int32_t num_ranks, Deadline deadline) {
    rank_ = rank;
    UniqueId unique{};
    std::memcpy(unique.bytes.data(), id.data(), std::min(id.size(), unique.bytes.size()));
    Config config;
    library_.check(library_.nccl.comm_init_rank_config(&comm_, num_ranks, unique, rank, &config),
                   "ncclCommInitRankConfig");
    if (!await(deadline)) throw BackendError("NCCL's ranks did not all come to ncclCommInitRankConfig in time");
  }

  [[nodiscard]] bool wants_announcements() const override { return true; }

  void begin_round() override { blocked_by_ = kAll; }

  std::int32_t advance(Exchange& exchange) override {
    if (blocked_by_ == kAll) blocked_by_ = late_peer(exchange);
    if (blocked_by_ != kAll) return blocked_by_;
    device_.follow(kSide, *exchange.begun);
    library_.check(library_.nccl.group_start(), "ncclGroupStart");
    for (const Outgoing& parcel : exchange.sends)
      for_each_device_message(parcel, [&](const Message& message, std::size_t bytes) {
        library_.check(library_.nccl.send(message.data, bytes, kBytes, message.peer, comm_, device_.stream(kSide)),
                       "ncclSend");
      });
    for (const Incoming& parcel : exchange.recvs)
      for_each_device_message(parcel, [&](const Message& message, std::size_t bytes) {
        library_.check(library_.nccl.recv(message.data, bytes, kBytes, message.peer, comm_, device_.stream(kSide)),
                       "ncclRecv");
      });
    library_.check(library_.nccl.group_end(), "ncclGroupEnd");
    if (!await(Deadline::max())) return rank_;  // the transport has failed
    exchange.done = device_.mark(kSide);
    return kAll;
  }

  [[nodiscard]] bool may_have_arrived(std::int32_t, Word) const override { return true; }

  void abort() noexcept override {
    if (comm_ != nullptr) library_.nccl.comm_abort(std::exchange(comm_, nullptr));
  }

 private:
  static constexpr Queue kSide = side_queue(0);

  /// The peer that has not begun this exchange; kAll: all have, and sizes agree.
  static std::int32_t late_peer(const Exchange& exchange) {
    for (const Outgoing& parcel : exchange.sends)
      if (parcel.place == Place::device && !parcel.post) return parcel.peer;
    for (const Incoming& parcel : exchange.recvs)
      if (parcel.place == Place::device && !parcel.is_announced) return parcel.peer;
    return kAll;
  }

  template <typename Fn>
  static void for_each_device_message(const Parcel& parcel, Fn&& fn) {
    if (parcel.place != Place::device) return;
    for (const Message& message : parcel.messages)
      if (message.bytes > 0) fn(message, static_cast<std::size_t>(message.bytes));
  }

  /// True when what NCCL was asked for has been done, false at the deadline or when the transport has failed.
  [[nodiscard]] bool await(Deadline deadline) const {
    constexpr std::chrono::microseconds kPause{5};
    while (true) {
      Result result = kSuccess;
      library_.check(library_.nccl.comm_get_async_error(comm_, &result), "ncclCommGetAsyncError");
      library_.check(result, "NCCL");
      if (result == kSuccess) return true;
      if (failure_.happened() || std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(kPause);
    }
  }

  NcclLibrary& library_;
  CudaDevice& device_;
  const Failure& failure_;
  std::int32_t rank_ = 0;
  std::int32_t blocked_by_ = kAll;  // in this round
  Comm comm_ = nullptr;
};

std::unique_ptr<Courier> NcclLibrary::join(const std::string& id, std::int32_t rank, std::int32_t num_ranks,
                                           const Failure& failure, Deadline deadline) {
  auto courier = std::make_unique<SendRecvCourier>(*this, device_, failure);
  courier->join(id, rank, num_ranks, deadline);
  return courier;
}

}  // namespace

std::unique_ptr<Library> find_nccl(const std::string& path, CudaDevice& device) {
  return std::make_unique<NcclLibrary>(path, device);
}

}  // namespace marble::nccl

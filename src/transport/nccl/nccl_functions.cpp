// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/nccl_functions.hpp"

#include "marble/error.hpp"

#include <dlfcn.h>

namespace marble::nccl {
namespace {

constexpr int kOldest = 21'400;
constexpr int kFirstWithPuts = 22'902;

template <typename F>
void find(void* library, F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) throw BackendError(fmt::format("this NCCL has no {}; version 2.14 or newer has", name));
}

void find_all(void* library, NcclFunctions& call) {
  find(library, call.get_version, "ncclGetVersion");
  find(library, call.get_unique_id, "ncclGetUniqueId");
  find(library, call.comm_init_rank_config, "ncclCommInitRankConfig");
  find(library, call.comm_finalize, "ncclCommFinalize");
  find(library, call.comm_destroy, "ncclCommDestroy");
  find(library, call.comm_abort, "ncclCommAbort");
  find(library, call.comm_get_async_error, "ncclCommGetAsyncError");
  find(library, call.group_start, "ncclGroupStart");
  find(library, call.group_end, "ncclGroupEnd");
  find(library, call.send, "ncclSend");
  find(library, call.recv, "ncclRecv");
  find(library, call.get_error_string, "ncclGetErrorString");
  find(library, call.get_last_error, "ncclGetLastError");
}

void find_puts(void* library, NcclFunctions& call) {
  find(library, call.mem_alloc, "ncclMemAlloc");
  find(library, call.mem_free, "ncclMemFree");
  find(library, call.comm_window_register, "ncclCommWindowRegister");
  find(library, call.comm_window_deregister, "ncclCommWindowDeregister");
  find(library, call.put_signal, "ncclPutSignal");
}

}  // namespace

NcclLoaded::NcclLoaded(const std::string& path) {
  constexpr const char* kName = "libnccl.so.2";
  // It stays loaded: a thread that is left behind may be in it.
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  void* library = path.empty() ? dlopen(kName, kMode | RTLD_NOLOAD) : dlopen(path.c_str(), kMode);
  if (library == nullptr && path.empty()) library = dlopen(kName, kMode);
  if (library == nullptr) throw BackendError(fmt::format("no NCCL: {}", dlerror()));
  find_all(library, call);
  check(call.get_version(&version_), "ncclGetVersion");
  if (version_ < kOldest) throw BackendError(fmt::format("NCCL {} ({}) is older than 2.14", version(), this->path()));
  if (version_ >= kFirstWithPuts) find_puts(library, call);
}

std::string NcclLoaded::version() const {
  constexpr int kMajor = 10'000, kMinor = 100;
  return fmt::format("{}.{}.{}", version_ / kMajor, version_ % kMajor / kMinor, version_ % kMinor);
}

std::string NcclLoaded::path() const {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(call.get_version), &info);
  return info.dli_fname != nullptr ? info.dli_fname : "?";
}

void NcclLoaded::check(NcclResult result, const char* name, NcclComm comm) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  const std::string own_words = comm != nullptr ? call.get_last_error(comm) : "";
  throw BackendError(
      fmt::format("{}: {}{}{}", name, call.get_error_string(result), own_words.empty() ? "" : ": ", own_words));
}

}  // namespace marble::nccl

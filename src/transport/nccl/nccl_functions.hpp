// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What we use of nccl.h, whose names and values NCCL keeps from version to version: the library is found at run time,
// and no header of it is needed to build.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <string>

namespace marble::nccl {

using NcclComm = struct ncclComm*;
using NcclWindow = struct ncclWindow_vidmem*;
using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr int kNcclBytes = 0;  // ncclInt8
inline constexpr int kNcclSymmetric = 1, kNcclStrictOrdering = 2;

struct NcclUniqueId {
  std::array<char, 128> bytes;
};

/// The first fields of ncclConfig_t, which have stayed; `size` tells NCCL that there are no others, and `version`
/// that they are those of 2.14.
struct NcclConfig {
  explicit NcclConfig(bool is_blocking) : blocking(is_blocking ? 1 : 0) {}

  static constexpr unsigned int kMagic = 0xcafebeef;
  static constexpr unsigned int kVersion = 21'400;
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = kMagic;
  unsigned int version = kVersion;
  int blocking;
  int padding = 0;
};

struct NcclFunctions {
  NcclResult (*get_version)(int*);
  NcclResult (*get_unique_id)(NcclUniqueId*);
  NcclResult (*comm_init_rank_config)(NcclComm*, int, NcclUniqueId, int, NcclConfig*);
  NcclResult (*comm_finalize)(NcclComm);
  NcclResult (*comm_destroy)(NcclComm);
  NcclResult (*comm_abort)(NcclComm);
  NcclResult (*comm_get_async_error)(NcclComm, NcclResult*);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*send)(const void*, std::size_t, int, int, NcclComm, cudaStream_t);
  NcclResult (*recv)(void*, std::size_t, int, int, NcclComm, cudaStream_t);
  const char* (*get_error_string)(NcclResult);
  const char* (*get_last_error)(NcclComm);
  // From 2.29.2 on; null before.
  NcclResult (*mem_alloc)(void**, std::size_t);
  NcclResult (*mem_free)(void*);
  NcclResult (*comm_window_register)(NcclComm, void*, std::size_t, NcclWindow*, int);
  NcclResult (*comm_window_deregister)(NcclComm, NcclWindow);
  NcclResult (*put_signal)(const void*, std::size_t, int, int, NcclWindow, std::size_t, int, int, unsigned int,
                           NcclComm, cudaStream_t);

  [[nodiscard]] bool has_puts() const { return put_signal != nullptr; }
};

/// NCCL, loaded.
class NcclLoaded {
 public:
  /// Throws BackendError when there is none, or only one older than 2.14. `path` as for find_nccl.
  explicit NcclLoaded(const std::string& path);

  /// "2.28.9"
  [[nodiscard]] std::string version() const;
  /// Of the file that it was loaded from.
  [[nodiscard]] std::string path() const;
  /// Throws BackendError with NCCL's own words, those of `comm` if there is one, unless it was done or is under way.
  void check(NcclResult result, const char* call, NcclComm comm = nullptr) const;

  NcclFunctions call{};

 private:
  int version_ = 0;
};

}  // namespace marble::nccl

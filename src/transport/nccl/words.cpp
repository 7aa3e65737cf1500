// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/words.hpp"

#include "marble/error.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace marble::nccl {
namespace {

std::int64_t whole_pages(std::int64_t bytes) {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

[[noreturn]] void fail_memory(const std::string& what) {
  throw BackendError(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

std::unique_ptr<WordMemory> WordMemory::map(int file, std::int64_t bytes, std::string name, bool owns_name) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, flags, file, 0);
  const int error = errno;
  if (file >= 0) close(file);
  errno = error;
  if (data == MAP_FAILED) fail_memory(fmt::format("mapping {} bytes of shared memory", bytes));
  return std::unique_ptr<WordMemory>(new WordMemory(data, bytes, std::move(name), owns_name));
}

std::unique_ptr<WordMemory> WordMemory::own(std::int64_t bytes) {
  return map(-1, whole_pages(bytes), {}, false);
}

std::unique_ptr<WordMemory> WordMemory::create_shared(std::int64_t bytes) {
  std::random_device random;
  std::string name = fmt::format("/marble-{}-{:08x}{:08x}", getpid(), random(), random());
  const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, S_IRUSR | S_IWUSR);
  if (file < 0) fail_memory(fmt::format("creating shared memory {}", name));
  if (ftruncate(file, whole_pages(bytes)) != 0) {
    close(file);
    shm_unlink(name.c_str());
    fail_memory(fmt::format("growing shared memory {} to {} bytes", name, whole_pages(bytes)));
  }
  return map(file, whole_pages(bytes), std::move(name), true);
}

std::unique_ptr<WordMemory> WordMemory::open_shared(const std::string& name, std::int64_t bytes) {
  const int file = shm_open(name.c_str(), O_RDWR, 0);
  if (file < 0) fail_memory(fmt::format("opening shared memory {}", name));
  return map(file, whole_pages(bytes), name, false);
}

WordMemory::~WordMemory() {
  forget_name();
  munmap(data_, static_cast<std::size_t>(bytes_));
}

void WordMemory::forget_name() {
  if (std::exchange(owns_name_, false)) shm_unlink(name_.c_str());
}

}  // namespace marble::nccl

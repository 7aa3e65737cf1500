// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The stream transport with ranks as threads of this process, on host devices.

#include "transport/host_device.hpp"
#include "transport/host_library.hpp"
#include "transport/nccl/socket.hpp"
#include "transport/nccl/stream_transport.hpp"

#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace marble::nccl {

/// This thread's rank's.
inline thread_local HostDevice* this_device = nullptr;

/// A host device, this thread's from now on, and a library where puts are asked for.
inline Fabric host_fabric(Rung rung, HostDevice::Memory memory = HostDevice::Memory::device) {
  auto device = std::make_unique<HostDevice>(memory);
  this_device = device.get();
  Fabric fabric{.device = std::move(device), .no_library = "tests have none"};
  if (rung == Rung::put) {
    fabric.library = std::make_unique<HostLibrary>(*this_device);
    fabric.no_library = {};
  }
  return fabric;
}

/// Nobody's now, and outside the range from which the system gives ports to connections of tests beside this one.
inline std::int32_t free_port() {
  std::random_device random;
  for (;;) {
    const std::int32_t port = std::uniform_int_distribution(10'000, 30'000)(random);
    try {
      (void)listen_on(port);
      return port;
    } catch (const TransportError&) {
      continue;
    }
  }
}

struct ThreadRanks {
  std::int32_t num_ranks = 2;
  NcclOptions options = {};
  HostDevice::Memory memory = HostDevice::Memory::device;
  std::function<void(std::int32_t rank, HostDevice& device)> prepare = [](std::int32_t, HostDevice&) {};

  /// Runs fn on every rank's thread; rethrows what the lowest rank threw.
  void run(const std::function<void(StreamTransport&)>& fn) const {
    const std::int32_t port = free_port();
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(num_ranks));
    {
      std::vector<std::jthread> threads;
      for (std::int32_t rank = 0; rank < num_ranks; ++rank)
        threads.emplace_back([&, rank] {
          try {
            run_rank(rank, port, fn);
          } catch (...) {
            errors[static_cast<std::size_t>(rank)] = std::current_exception();
          }
        });
    }
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
  }

 private:
  void run_rank(std::int32_t rank, std::int32_t port, const std::function<void(StreamTransport&)>& fn) const {
    Fabric fabric = host_fabric(options.rung, memory);
    prepare(rank, *this_device);
    NcclOptions own = options;
    own.rank = rank;
    own.num_ranks = num_ranks;
    own.address = "127.0.0.1";
    own.port = port;
    StreamTransport transport(own, std::move(fabric));
    fn(transport);
  }
};

}  // namespace marble::nccl

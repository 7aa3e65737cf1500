// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How ranks find each other: all connect to rank 0, which tells each where the others listen.

#include "transport/nccl/socket.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace marble::nccl {

struct Endpoint {
  std::string host;
  std::int32_t port = 0;
};

struct Meeting {
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::vector<Socket> connections;  // by rank: rank 0 has one to every other rank, and each of those to rank 0
  std::vector<Endpoint> endpoints;  // by rank: where it takes connections from higher ranks
  Socket listener;                  // this rank's
};

/// Collective. Throws TransportError, naming the ranks that did not come, at the limit.
[[nodiscard]] Meeting meet(std::int32_t rank, std::int32_t num_ranks, const std::string& address, std::int32_t port,
                           std::chrono::milliseconds time_limit);

/// The first words on a connection between two ranks.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x31'6c'65'6c'62'72'61'6dULL;
  static constexpr std::int32_t kProtocol = 1;
  std::uint64_t magic = kMagic;
  std::int32_t protocol = kProtocol;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 0;
  std::int32_t port = 0;  // where this rank listens
};

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// How a process whose MPI is the transport's own ends: `clean` finalises; `stalled` ends although the other rank never
// comes.

#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  try {
    const auto transport = marble::make_mpi_transport({.time_limit = std::chrono::milliseconds(500)});
    transport->agree(1, "digest");
    if (argc < 2 || std::string_view(argv[1]) == "clean") return 0;
    if (transport->rank() != 0) std::this_thread::sleep_for(std::chrono::hours(1));
    std::vector<char> memory(1'000'000);
    const marble::Message message{1, memory.data(), 1'000'000};
    transport->wait(transport->begin({&message, 1}, {}, "to a stalled rank"));
  } catch (const marble::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

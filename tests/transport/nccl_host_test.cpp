// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The transport contract, over the rungs that a host can run: copies and puts between host devices, and sockets.

#include "transport/thread_ranks.hpp"
#include "transport/transport_conformance.hpp"

namespace marble {
namespace {

RanksUnderTest thread_ranks(const std::string& name, std::int32_t num_ranks, Rung rung,
                            nccl::HostDevice::Memory memory) {
  return {name + std::to_string(num_ranks), num_ranks,
          [=](const TransportOptions& options, const std::function<void(Transport&)>& fn) {
            nccl::ThreadRanks{
                .num_ranks = num_ranks, .options = {.rung = rung, .time_limit = options.time_limit}, .memory = memory}
                .run(fn);
          },
          [] { nccl::this_device->synchronize(nccl::kCompute); }, false};
}

using Memory = nccl::HostDevice::Memory;
INSTANTIATE_TEST_SUITE_P(NcclOnHost, TransportConformance,
                         testing::Values(thread_ranks("Copies", 2, Rung::copy, Memory::device),
                                         thread_ranks("Copies", 3, Rung::copy, Memory::device),
                                         thread_ranks("Copies", 5, Rung::copy, Memory::device),
                                         thread_ranks("Puts", 2, Rung::put, Memory::device),
                                         thread_ranks("Puts", 3, Rung::put, Memory::device),
                                         thread_ranks("Puts", 5, Rung::put, Memory::device),
                                         thread_ranks("Sockets", 2, Rung::copy, Memory::host),
                                         thread_ranks("Sockets", 3, Rung::put, Memory::host)),
                         ranks_name);

}  // namespace
}  // namespace marble

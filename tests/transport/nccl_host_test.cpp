// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The transport contract, over the rungs that a host can run: copies between host devices, and sockets.

#include "transport/thread_ranks.hpp"
#include "transport/transport_conformance.hpp"

namespace marble {
namespace {

RanksUnderTest thread_ranks(const std::string& name, std::int32_t num_ranks, nccl::HostDevice::Memory memory) {
  return {
      name + std::to_string(num_ranks), num_ranks,
      [=](const TransportOptions& options, const std::function<void(Transport&)>& fn) {
        nccl::ThreadRanks{.num_ranks = num_ranks, .options = {.time_limit = options.time_limit}, .memory = memory}.run(
            fn);
      },
      [] { nccl::this_device->synchronize(nccl::kCompute); }, false};
}

using Memory = nccl::HostDevice::Memory;
INSTANTIATE_TEST_SUITE_P(NcclOnHost, TransportConformance,
                         testing::Values(thread_ranks("Copies", 2, Memory::device),
                                         thread_ranks("Copies", 3, Memory::device),
                                         thread_ranks("Copies", 5, Memory::device),
                                         thread_ranks("Sockets", 2, Memory::host),
                                         thread_ranks("Sockets", 3, Memory::host)),
                         ranks_name);

}  // namespace
}  // namespace marble

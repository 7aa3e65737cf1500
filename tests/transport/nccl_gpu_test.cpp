// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The transport contract between GPUs. Ranks are processes, which torchrun or mpirun starts; all run the same tests.

#include "transport/gpu_ranks.hpp"
#include "transport/transport_conformance.hpp"

namespace marble {
namespace {

std::shared_ptr<const TestMemory> device_memory() {
  return std::make_shared<const TestMemory>(TestMemory{[](std::size_t bytes) {
                                                         void* data = nullptr;
                                                         check_test_cuda(cudaMalloc(&data, bytes));
                                                         return static_cast<std::byte*>(data);
                                                       },
                                                       [](std::byte* data) { check_test_cuda(cudaFree(data)); },
                                                       [](void* to, const void* from, std::size_t bytes) {
                                                         check_test_cuda(
                                                             cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
                                                       }});
}

RanksUnderTest gpu_ranks(const std::string& name, Rung rung, std::shared_ptr<const TestMemory> memory) {
  return {name,
          gpu_test_ranks().num_ranks,
          [rung](const TransportOptions& options, const std::function<void(Transport&)>& fn) {
            meet_gpu_ranks();
            const auto transport = make_nccl_transport({.rung = rung, .time_limit = options.time_limit});
            fn(*transport);
          },
          [] { check_test_cuda(cudaStreamSynchronize(nullptr)); },
          false,
          std::move(memory)};
}

INSTANTIATE_TEST_SUITE_P(NcclOnGpus, TransportConformance,
                         testing::Values(gpu_ranks("Copy", Rung::copy, device_memory()),
                                         gpu_ranks("SendRecv", Rung::sendrecv, device_memory()),
                                         gpu_ranks("Sockets", Rung::copy, nullptr)),
                         ranks_name);

}  // namespace
}  // namespace marble

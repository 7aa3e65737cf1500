// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The transport contract between GPUs. Ranks are processes, which torchrun or mpirun starts; all run the same tests.

#include "transport/gpu_ranks.hpp"
#include "transport/transport_conformance.hpp"

#include "marble/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

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
          std::move(memory),
          why_not_here(rung)};
}

/// Every rung with device memory, and host memory, which travels alike over each.
std::vector<RanksUnderTest> all_ranks() {
  std::vector<RanksUnderTest> all = {gpu_ranks("sockets", Rung::copy, nullptr)};
  for (const Rung rung : kRungs) all.push_back(gpu_ranks(std::string(to_string(rung)), rung, device_memory()));
  return all;
}

INSTANTIATE_TEST_SUITE_P(NcclOnGpus, TransportConformance, testing::ValuesIn(all_ranks()), ranks_name);

/// Swaps messages with the other of two ranks.
class GpuSwap {
 public:
  explicit GpuSwap(Transport& transport)
      : transport_(transport),
        peer_(1 - transport.rank()),
        sent_(kBytes, memory_.get()),
        received_(kBytes, memory_.get()) {
    std::fill(sent_.host.begin(), sent_.host.end(), static_cast<std::byte>(1 + transport.rank()));
    sent_.upload();
  }

  void run(std::string_view label) {
    const std::vector<Message> sends = {{peer_, sent_.data(), kBytes}}, recvs = {{peer_, received_.data(), kBytes}};
    transport_.wait(transport_.begin(sends, recvs, label));
  }
  void settle() {
    check_test_cuda(cudaStreamSynchronize(nullptr));
    transport_.check();
  }
  void expect_received() {
    received_.download();
    EXPECT_THAT(received_.host, testing::Each(static_cast<std::byte>(1 + peer_)));
  }

 private:
  static constexpr std::int64_t kBytes = 100'000;
  std::shared_ptr<const TestMemory> memory_ = device_memory();
  Transport& transport_;
  std::int32_t peer_;
  TestBuffer sent_, received_;
};

class GpuRanks : public testing::TestWithParam<Rung> {
 protected:
  void SetUp() override {
    if (gpu_test_ranks().num_ranks != 2) GTEST_SKIP() << "for 2 ranks";
    if (const std::string why_not = why_not_here(GetParam()); !why_not.empty()) GTEST_SKIP() << why_not;
    meet_gpu_ranks();
  }

  [[nodiscard]] static std::unique_ptr<Transport> make(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    return make_nccl_transport({.rung = GetParam(), .time_limit = limit});
  }
};

TEST_P(GpuRanks, SaysItsRung) {
  const auto transport = make();
  EXPECT_EQ(transport->name(), fmt::format("nccl-{}", to_string(GetParam())));
  EXPECT_EQ(transport->reserves(), GetParam() != Rung::sendrecv);
}

TEST_P(GpuRanks, CallsThatWaitForTheDeviceDoNotHoldUpCopies) {
  const auto transport = make();
  GpuSwap swap(*transport);
  for (const std::int32_t late : {0, 1}) {
    transport->agree(0, "the start");
    if (transport->rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    swap.run("with a late rank");
    // Waits until the stream is empty, which waits for the other rank.
    const auto memory = device_memory();
    const TestBuffer allocated_and_freed(1'000'000, memory.get());
  }
  swap.settle();
  swap.expect_received();
}

TEST_P(GpuRanks, StalledRankEndsTheStreamsWaitsAndANewTransportWorks) {
  constexpr std::chrono::milliseconds kHasty{600};
  {
    const auto transport = make(kHasty);
    GpuSwap swap(*transport);
    swap.run("before");
    swap.settle();
    if (transport->rank() == 1) std::this_thread::sleep_for(3 * kHasty);
    const auto started = std::chrono::steady_clock::now();
    try {
      swap.run("layer 3 forward step 1 fetch");
      swap.settle();
      ADD_FAILURE() << "no TransportError";
    } catch (const TransportError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 waited 0.6 s for a message of 100,000 bytes from rank 1 in "
                                                   "'layer 3 forward step 1 fetch'"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - started, 2 * kHasty);
  }
  const auto transport = make();
  GpuSwap swap(*transport);
  swap.run("after");
  swap.settle();
  swap.expect_received();
}

/// Large allocations often lie end to end, but no copy may cross from one into the next.
TEST_P(GpuRanks, NeighbouringAllocationsAreSentApart) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 20;
  constexpr std::size_t kAllocations = 16;
  const auto transport = make();
  transport->reserve(kAllocations * kBytes);
  auto* const landing = static_cast<std::byte*>(transport->reserved());
  const auto memory = device_memory();
  std::vector<TestBuffer> sent, received;
  for (std::size_t i = 0; i < kAllocations; ++i) {
    sent.emplace_back(kBytes, memory.get(), static_cast<std::byte>(i));
    received.emplace_back(kBytes, memory.get());
  }
  std::sort(sent.begin(), sent.end(), [](TestBuffer& a, TestBuffer& b) { return a.data() < b.data(); });
  std::vector<Message> sends, recvs;
  for (std::size_t i = 0; i < kAllocations; ++i) {
    std::byte* const target = landing != nullptr ? landing + static_cast<std::int64_t>(i) * kBytes : received[i].data();
    sends.push_back({1 - transport->rank(), sent[i].data(), kBytes});
    recvs.push_back({1 - transport->rank(), target, kBytes});
  }
  transport->wait(transport->begin(sends, recvs, "keys and values"));
  check_test_cuda(cudaStreamSynchronize(nullptr));
  transport->check();
}

INSTANTIATE_TEST_SUITE_P(NcclOnGpus, GpuRanks, testing::ValuesIn(kRungs),
                         [](const testing::TestParamInfo<Rung>& rung) { return std::string(to_string(rung.param)); });

}  // namespace
}  // namespace marble

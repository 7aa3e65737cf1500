// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// How the stream transport ends when something goes wrong.

#include "transport/stream_ranks.hpp"

#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace marble::nccl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class StreamTransportFaults : public StreamTransportRung {};

TEST_P(StreamTransportFaults, RankThatRefusesEndsTheOthersWaits) {
  ranks(3, GetParam()).run([](Transport& transport) {
    AllToAll messages(transport, 1'000);
    const auto started = std::chrono::steady_clock::now();
    const std::string error = error_of([&] {
      if (transport.rank() == 1) transport.fail("q has the wrong shape");
      transport.wait(messages.begin(transport, "fetch"));
      settle(transport);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - started, kPatient / 2);
    EXPECT_THAT(error, HasSubstr("q has the wrong shape"));
  });
}

TEST_P(StreamTransportFaults, StalledRankEndsEveryWaitAtTheLimit) {
  std::vector<std::string> errors(3);
  const auto started = std::chrono::steady_clock::now();
  ranks(3, GetParam(), kHasty).run([&](Transport& transport) {
    if (transport.rank() == 2) std::this_thread::sleep_for(3 * kHasty);
    AllToAll first(transport, 10), second(transport, 10);
    errors[static_cast<std::size_t>(transport.rank())] = error_of([&] {
      transport.wait(first.begin(transport, "layer 7 forward step 0 fetch"));
      transport.wait(second.begin(transport, "layer 7 forward step 1 fetch"));
      settle(transport);
    });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, 8 * kHasty);
  EXPECT_THAT(errors[0], HasSubstr("waited 0.4 s for a message of 10 bytes from rank 2 in 'layer 7 forward step 0"));
  EXPECT_THAT(errors[1], HasSubstr("waited 0.4 s for a message of 10 bytes from rank 2 in 'layer 7 forward step 0"));
  EXPECT_THAT(errors[2], HasSubstr("failed"));
}

TEST_P(StreamTransportFaults, StreamRunsOnAfterAFailureAndCheckTells) {
  ranks(2, GetParam(), kHasty).run([](Transport& transport) {
    if (transport.rank() == 1) {
      std::this_thread::sleep_for(2 * kHasty);
      return;
    }
    std::vector<std::byte> memory(10);
    const std::vector<Message> recvs = {{1, memory.data(), 10}};
    const auto ticket = transport.begin({}, recvs, "fetch");
    transport.wait(ticket);
    this_device->synchronize(kCompute);  // returns, at the limit
    EXPECT_EQ(error_of([&] { transport.check(); }),
              "rank 0 waited 0.4 s for a message of 10 bytes from rank 1 in 'fetch'");
    EXPECT_THAT(error_of([&] { transport.wait(ticket); }), HasSubstr("rank 0: this transport failed before: rank 0"));
    EXPECT_THAT(error_of([&] { transport.reserve(1); }), HasSubstr("failed before"));
  });
}

TEST_P(StreamTransportFaults, StalledStreamEndsEveryWaitAndCopiesToItAreGivenUp) {
  // Both hosts have begun, so rank 0's copy is asked for; it waits for a credit that comes too late.
  const auto started = std::chrono::steady_clock::now();
  ranks(2, GetParam(), kHasty).run([](Transport& transport) {
    AllToAll messages(transport, 10);
    if (transport.rank() == 1) this_device->pause(kCompute, 4 * kHasty);
    EXPECT_THAT(error_of([&] {
                  transport.wait(messages.begin(transport, "fetch"));
                  settle(transport);
                }),
                HasSubstr("rank 0 waited 0.4 s for a message of 10 bytes from rank 1 in 'fetch'"));
    while (!this_device->is_idle(side_queue(1 - transport.rank()))) std::this_thread::sleep_for(milliseconds(1));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, 20 * kHasty);
}

TEST_P(StreamTransportFaults, RankThatThrowsEndsTheOthersAtOnce) {
  std::vector<std::string> errors(3);
  const auto started = std::chrono::steady_clock::now();
  const auto run = [&] {
    ranks(3, GetParam()).run([&](Transport& transport) {
      AllToAll messages(transport, 10);
      if (transport.rank() == 0) {
        messages.begin(transport, "layer 1");
        throw std::out_of_range("row 7 of 5");
      }
      errors[static_cast<std::size_t>(transport.rank())] = error_of([&] {
        transport.wait(messages.begin(transport, "layer 1"));
        transport.wait(messages.begin(transport, "layer 2"));
        settle(transport);
      });
    });
  };
  EXPECT_THROW(run(), std::out_of_range);
  EXPECT_LT(std::chrono::steady_clock::now() - started, kPatient / 2);
  for (const int rank : {1, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("rank 0 failed: rank 0 gave up 'layer 1'"));
}

TEST(StreamTransport, RankThatDiesEndsTheOthersAtOnce) {
  const std::int32_t port = free_port();
  const auto started = std::chrono::steady_clock::now();
  std::jthread dying([&] { [[maybe_unused]] const Meeting meeting = meet(1, 2, "127.0.0.1", port, kPatient); });
  const NcclOptions options{.rank = 0, .num_ranks = 2, .port = port, .time_limit = kPatient};
  EXPECT_EQ(error_of([&] {
              StreamTransport(options, Fabric{.device = std::make_unique<HostDevice>(), .no_library = "none"});
            }),
            "rank 0 lost its connection to rank 1, which has ended");
  EXPECT_LT(std::chrono::steady_clock::now() - started, kPatient / 2);
}

TEST_P(StreamTransportFaults, RankThatLeavesEndsWaitsForWhatItNeverSent) {
  const auto started = std::chrono::steady_clock::now();
  ranks(2, GetParam()).run([](Transport& transport) {
    if (transport.rank() == 1) return;
    AllToAll messages(transport, 10);
    EXPECT_THAT(error_of([&] {
                  transport.wait(messages.begin(transport, "fetch"));
                  settle(transport);
                }),
                HasSubstr("rank 1"));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, kPatient / 2);
}

TEST_P(StreamTransportFaults, ANewOneWorksAfterAFailure) {
  const std::int32_t port = free_port();
  const auto make = [&](std::int32_t rank, milliseconds limit) {
    const NcclOptions options{.rank = rank,
                              .num_ranks = 2,
                              .device = 0,
                              .address = "127.0.0.1",
                              .port = port,
                              .rung = GetParam(),
                              .time_limit = limit};
    return std::make_unique<StreamTransport>(options, host_fabric(GetParam()));
  };
  const auto run_rank = [&](std::int32_t rank) {
    for (int generation = 0; generation < 3; ++generation) {
      {
        const auto transport = make(rank, kHasty);
        AllToAll messages(*transport, 10);
        if (rank == 1) std::this_thread::sleep_for(2 * kHasty);
        error_of([&] {
          transport->wait(messages.begin(*transport, "lost"));
          settle(*transport);
        });
      }
      const auto transport = make(rank, kPatient);
      AllToAll messages(*transport, 10, generation);
      transport->wait(messages.begin(*transport, "found"));
      settle(*transport);
      messages.expect_received();
    }
  };
  std::jthread other([&] { run_rank(1); });
  run_rank(0);
}

TEST_P(StreamTransportFaults, DeviceThatRefusesFailsItsRankForAll) {
  ranks(2, GetParam()).run([](Transport& transport) {
    AllToAll messages(transport, 10);
    this_device->refuses = transport.rank() == 1;
    try {
      // The first may have brought everything before the device refuses.
      for (int i = 0; i < 2; ++i) transport.wait(messages.begin(transport, "fetch"));
      settle(transport);
      ADD_FAILURE() << "rank " << transport.rank() << " got through";
    } catch (const BackendError& error) {
      EXPECT_EQ(transport.rank(), 1);
      EXPECT_STREQ(error.what(), "device lost");
    } catch (const TransportError& error) {
      EXPECT_EQ(transport.rank(), 0);
      EXPECT_STREQ(error.what(), "rank 0: rank 1 failed: device lost");
    }
    EXPECT_THROW(transport.check(), TransportError);
    this_device->synchronize(kCompute);
  });
}

TEST_P(StreamTransportFaults, AnEndWaitsForWhatTheComputeStreamHasYetToDo) {
  ranks(2, GetParam()).run([](Transport& transport) {
    AllToAll messages(transport, 10);
    this_device->pause(kCompute, kHasty / 4);  // before it writes credits
    try {
      (void)messages.begin(transport, "given up");
    } catch (const TransportError&) {
      // The other rank has given up before.
    }
  });
  EXPECT_EQ(HostDevice::num_given_back_early, 0);
}

TEST_P(StreamTransportFaults, CaptureIsRefused) {
  ranks(2, GetParam()).run([](Transport& transport) {
    AllToAll messages(transport, 10);
    this_device->captures = true;
    EXPECT_THROW(messages.begin(transport, "captured"), InvalidArgument);
    this_device->captures = false;
    transport.wait(messages.begin(transport, "not captured"));
    settle(transport);
  });
}

TEST(StreamTransport, QueuesThatHoldEachOtherUpAreRefused) {
  ThreadRanks shared = ranks(2);
  shared.prepare = [](std::int32_t rank, HostDevice& device) { device.blocks_side = rank == 1; };
  try {
    shared.run([](Transport&) { ADD_FAILURE() << "made"; });
    FAIL() << "made";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("copy: rank 1: copies do not run while the compute stream waits"),
                                    HasSubstr("sendrecv: rank 0: tests have none")));
  }
}

TEST_P(StreamTransportFaults, MixedMemoryIsAnError) {
  ThreadRanks mixed = ranks(2, GetParam());
  mixed.prepare = [](std::int32_t rank, HostDevice& device) {
    device.memory = rank == 0 ? HostDevice::Memory::device : HostDevice::Memory::host;
  };
  mixed.run([](Transport& transport) {
    AllToAll messages(transport, 10);
    EXPECT_THAT(error_of([&] {
                  transport.wait(messages.begin(transport, "mixed"));
                  settle(transport);
                }),
                AllOf(HasSubstr("host memory"), HasSubstr("device memory"), HasSubstr("'mixed'")));
  });
}

TEST(StreamTransport, DifferentWishesForARungAreAnErrorOnAllRanks) {
  ThreadRanks split = ranks(2);
  std::int32_t refused = 0;
  std::mutex mutex;
  const std::int32_t port = free_port();
  const auto run_rank = [&](std::int32_t rank) {
    NcclOptions options{.rank = rank, .num_ranks = 2, .address = "127.0.0.1", .port = port};
    options.rung = rank == 0 ? Rung::automatic : Rung::copy;
    try {
      StreamTransport(options, Fabric{.device = std::make_unique<HostDevice>(), .no_library = "none"});
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), "rank 0 wants rung auto and rank 1 wants copy");
      const std::scoped_lock lock(mutex);
      ++refused;
    }
  };
  {
    std::jthread other([&] { run_rank(1); });
    run_rank(0);
  }
  EXPECT_EQ(refused, 2);
}

TEST(StreamTransport, MissingRanksAreNamed) {
  const NcclOptions options{.rank = 0, .num_ranks = 3, .port = free_port(), .time_limit = kHasty};
  EXPECT_THAT(error_of([&] {
                StreamTransport(options, Fabric{.device = std::make_unique<HostDevice>(), .no_library = "none"});
              }),
              AllOf(HasSubstr("rank 0 waited 0.4 s"), HasSubstr("for ranks 1, 2")));
}

INSTANTIATE_TEST_SUITE_P(OnHost, StreamTransportFaults, testing::Values(Rung::copy, Rung::put), rung_name);

}  // namespace
}  // namespace marble::nccl

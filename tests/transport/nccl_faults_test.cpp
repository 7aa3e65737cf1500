// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// How the stream transport ends when something goes wrong, and what it promises beside the common contract.

#include "transport/thread_ranks.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace marble::nccl {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kPatient{20'000};
constexpr milliseconds kHasty{400};

ThreadRanks ranks(std::int32_t num_ranks, Rung rung = Rung::automatic, milliseconds limit = kPatient) {
  return {.num_ranks = num_ranks, .options = {.rung = rung, .time_limit = limit}};
}

/// What the stream did by now: waits for it, and throws what it met.
void settle(Transport& transport) {
  this_device->synchronize(kCompute);
  transport.check();
}

/// Memory of messages, which after a failure side queues may still read: it lives until the test is over, and so do
/// all transports.
class KeptMemory {
 public:
  static std::span<std::byte> take(std::size_t bytes, std::byte fill = {}) {
    const std::scoped_lock lock(mutex());
    return all().emplace_back(bytes, fill);
  }
  static void drop() { all().clear(); }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::list<std::vector<std::byte>>& all() {
    static std::list<std::vector<std::byte>> list;
    return list;
  }
};

/// A message to every other rank and one from each.
class AllToAll {
 public:
  AllToAll(const Transport& transport, std::size_t bytes, int salt = 0) : rank_(transport.rank()), salt_(salt) {
    const std::span<std::byte> sent = KeptMemory::take(bytes, mark(rank_));
    for (std::int32_t peer = 0; peer < transport.num_ranks(); ++peer) {
      if (peer == rank_) continue;
      const std::span<std::byte> received = received_.emplace_back(KeptMemory::take(bytes));
      sends_.push_back({peer, sent.data(), std::ssize(sent)});
      recvs_.push_back({peer, received.data(), std::ssize(received)});
    }
  }

  std::int64_t begin(Transport& transport, std::string_view label) { return transport.begin(sends_, recvs_, label); }
  void expect_received() const {
    for (std::size_t i = 0; i < recvs_.size(); ++i)
      EXPECT_THAT(received_[i], testing::Each(mark(recvs_[i].peer))) << "from rank " << recvs_[i].peer;
  }

 private:
  [[nodiscard]] std::byte mark(std::int32_t rank) const { return static_cast<std::byte>(1 + rank + 16 * salt_); }

  std::int32_t rank_;
  int salt_;
  std::vector<std::span<std::byte>> received_;
  std::vector<Message> sends_, recvs_;
};

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const TransportError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no TransportError";
  return {};
}

class StreamTransportRung : public testing::TestWithParam<Rung> {
 protected:
  void TearDown() override { KeptMemory::drop(); }
};

TEST_P(StreamTransportRung, WaitReturnsBeforeTheDataIsThere) {
  constexpr milliseconds kLate{300};
  ranks(2, GetParam()).run([&](Transport& transport) {
    AllToAll messages(transport, 1'000);
    if (transport.rank() == 1) this_device->pause(kCompute, kLate);
    const auto started = std::chrono::steady_clock::now();
    transport.wait(messages.begin(transport, "fetch"));
    EXPECT_LT(std::chrono::steady_clock::now() - started, kLate / 2);
    settle(transport);
    EXPECT_GE(std::chrono::steady_clock::now() - started, kLate / 2);
    messages.expect_received();
  });
}

TEST_P(StreamTransportRung, RankThatRefusesEndsTheOthersWaits) {
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

TEST_P(StreamTransportRung, SlowReceiverIsNeverOverwritten) {
  // Every exchange lands in the same memory, which the receiver's stream reads only after a while.
  constexpr int kExchanges = 20;
  ranks(2, GetParam()).run([](StreamTransport& transport) {
    const std::int32_t peer = 1 - transport.rank();
    transport.reserve(4);
    auto* const landing = static_cast<int*>(transport.reserved());
    std::array<int, kExchanges> sent{}, read{};
    for (std::size_t i = 0; i < kExchanges; ++i) {
      sent[i] = 100 * transport.rank() + static_cast<int>(i);
      const std::vector<Message> sends = {{peer, &sent[i], 4}}, recvs = {{peer, landing, 4}};
      transport.wait(transport.begin(sends, recvs, "fetch"));
      if (transport.rank() == 1) this_device->pause(kCompute, milliseconds(5));
      this_device->copy(kCompute, &read[i], landing, 4);
    }
    settle(transport);
    for (std::size_t i = 0; i < kExchanges; ++i) EXPECT_EQ(read[i], 100 * peer + static_cast<int>(i));
  });
}

TEST_P(StreamTransportRung, StalledRankEndsEveryWaitAtTheLimit) {
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

TEST_P(StreamTransportRung, StreamRunsOnAfterAFailureAndCheckTells) {
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

TEST_P(StreamTransportRung, StalledStreamEndsEveryWaitAndCopiesToItAreGivenUp) {
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

TEST_P(StreamTransportRung, RankThatThrowsEndsTheOthersAtOnce) {
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

TEST_P(StreamTransportRung, RankThatLeavesEndsWaitsForWhatItNeverSent) {
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

TEST_P(StreamTransportRung, ANewOneWorksAfterAFailure) {
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

TEST_P(StreamTransportRung, ReservedMemoryTakesMessagesInPlaceAndGrows) {
  ranks(3, GetParam()).run([](StreamTransport& transport) {
    ASSERT_TRUE(transport.reserves());
    EXPECT_EQ(transport.reserved(), nullptr);
    constexpr std::int64_t kMessage = 500;
    std::vector<std::byte> sent(kMessage, static_cast<std::byte>(transport.rank()));
    for (const std::int64_t bytes : {2'000, 5'000'000, 3'000}) {
      transport.reserve(bytes + transport.rank());
      auto* const memory = static_cast<std::byte*>(transport.reserved());
      ASSERT_NE(memory, nullptr);
      std::vector<Message> sends, recvs;
      for (std::int32_t peer = 0; peer < transport.num_ranks(); ++peer) {
        if (peer == transport.rank()) continue;
        sends.push_back({peer, sent.data(), kMessage});
        recvs.push_back({peer, memory + bytes - (1 + peer) * kMessage, kMessage});
      }
      transport.wait(transport.begin(sends, recvs, "in place"));
      settle(transport);
      for (const Message& recv : recvs)
        EXPECT_THAT(std::span(static_cast<std::byte*>(recv.data), sent.size()),
                    testing::Each(static_cast<std::byte>(recv.peer)));
    }
  });
}

TEST_P(StreamTransportRung, SendsFromAnyMemoryArriveWhole) {
  // From outside the transport's memory, more than the outbox of 2 MiB; from inside; and on from where it arrived.
  constexpr std::int64_t kOutside = 5'000'001, kInside = 3'000;
  ThreadRanks small = ranks(2, GetParam());
  small.options.staging_bytes = 1;
  small.run([](StreamTransport& transport) {
    const std::int32_t peer = 1 - transport.rank();
    transport.reserve(2 * (kOutside + kInside));
    auto* const arrived = static_cast<std::byte*>(transport.reserved());
    std::byte* const own = arrived + kOutside + kInside;
    std::vector<std::byte> outside(kOutside);
    for (std::size_t i = 0; i < outside.size(); ++i) outside[i] = static_cast<std::byte>(i % 251);
    std::fill_n(own, kInside, static_cast<std::byte>(transport.rank()));
    const std::vector<Message> sends = {{peer, outside.data(), kOutside}, {peer, own, kInside}},
                               recvs = {{peer, arrived, kOutside}, {peer, arrived + kOutside, kInside}};
    transport.wait(transport.begin(sends, recvs, "both"));
    const std::vector<Message> on = {{peer, arrived + kOutside, kInside}}, back = {{peer, own, kInside}};
    transport.wait(transport.begin(on, back, "on"));
    settle(transport);
    EXPECT_TRUE(std::equal(outside.begin(), outside.end(), arrived));
    EXPECT_THAT(std::span(arrived + kOutside, kInside), testing::Each(static_cast<std::byte>(peer)));
    EXPECT_THAT(std::span(own, kInside), testing::Each(static_cast<std::byte>(transport.rank())));
  });
}

TEST_P(StreamTransportRung, ReservingWithExchangesInFlightIsRefused) {
  ranks(2, GetParam()).run([](Transport& transport) {
    AllToAll messages(transport, 10);
    const auto ticket = messages.begin(transport, "open");
    EXPECT_THROW(transport.reserve(1), InvalidArgument);
    transport.wait(ticket);
    settle(transport);
  });
}

TEST_P(StreamTransportRung, MoreThanTheStagingHoldsIsRefusedBeforeAnythingStarts) {
  ThreadRanks small = ranks(2, GetParam());
  small.options.staging_bytes = 1;  // rounded up to 2 MiB
  small.run([](Transport& transport) {
    AllToAll large(transport, std::size_t{3} << 20), half(transport, std::size_t{1} << 20),
        other_half(transport, std::size_t{1} << 20), more(transport, 1);
    EXPECT_THROW(large.begin(transport, "large"), InvalidArgument);
    const auto first = half.begin(transport, "half"), second = other_half.begin(transport, "other half");
    EXPECT_THROW(more.begin(transport, "more"), InvalidArgument);
    transport.wait(second);
    transport.wait(first);
    // Now there is room, as soon as the stream has got there.
    transport.wait(more.begin(transport, "more"));
    settle(transport);
    for (const AllToAll* messages : {&half, &other_half, &more}) messages->expect_received();
  });
}

TEST_P(StreamTransportRung, DeviceThatRefusesFailsItsRankForAll) {
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

TEST_P(StreamTransportRung, CaptureIsRefused) {
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

TEST(StreamTransport, MessagesEndToEndAreOneCopy) {
  ranks(2).run([](StreamTransport& transport) {
    transport.reserve(4'096);
    auto* const memory = static_cast<std::byte*>(transport.reserved());
    std::vector<std::byte> sent(4'096, std::byte{9});
    std::vector<Message> sends, recvs;
    for (const std::int64_t at : {0, 1'024, 2'048}) {
      sends.push_back({1 - transport.rank(), sent.data() + at, 1'024});
      recvs.push_back({1 - transport.rank(), memory + at, 1'024});
    }
    const auto copies = [&] {
      const int before = this_device->num_copies;
      transport.wait(transport.begin(sends, recvs, "rows"));
      settle(transport);
      transport.agree(0, "the other side's copies");
      return this_device->num_copies - before;
    };
    EXPECT_EQ(copies(), 1);
    this_device->ends_at = sent.data() + 1'024;  // two tensors that happen to be neighbours
    EXPECT_EQ(copies(), 2);
  });
}

TEST_P(StreamTransportRung, MixedMemoryIsAnError) {
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

TEST(StreamTransport, OneRankNeedsNobody) {
  ranks(1).run([](StreamTransport& transport) {
    const std::vector<std::byte> sent(10, std::byte{3});
    std::vector<std::byte> received(10);
    const std::vector<Message> sends = {{0, const_cast<std::byte*>(sent.data()), 10}},
                               recvs = {{0, received.data(), 10}};
    transport.wait(transport.begin(sends, recvs, "own"));
    transport.agree(4, "value");
    transport.reserve(100);
    settle(transport);
    EXPECT_EQ(received, sent);
    EXPECT_FALSE(transport.reserves());
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

INSTANTIATE_TEST_SUITE_P(OnHost, StreamTransportRung, testing::Values(Rung::copy, Rung::put),
                         [](const testing::TestParamInfo<Rung>& rung) { return std::string(to_string(rung.param)); });

}  // namespace
}  // namespace marble::nccl

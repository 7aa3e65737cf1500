// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every transport must do, written once. A transport joins by instantiating TransportConformance with a way to run
// a function on each rank; with processes as ranks, each runs the same tests in the same order.

#include "transport/patterned_messages.hpp"

#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace marble {

struct RanksUnderTest {
  std::string name;
  std::int32_t num_ranks;
  /// Runs fn on each rank that lives in this process.
  std::function<void(const TransportOptions& options, const std::function<void(Transport&)>& fn)> run;
  /// Returns when what was waited for is there, for transports that put waits into a stream.
  std::function<void()> synchronize = [] {};
  bool uses_memory_access = true;
  std::shared_ptr<const TestMemory> memory = nullptr;  // of messages; null: the host's
  std::string why_not = {};                            // why they cannot run here: then every test is skipped
};

inline void PrintTo(const RanksUnderTest& ranks, std::ostream* out) {
  *out << ranks.name;
}

class TransportConformance : public testing::TestWithParam<RanksUnderTest> {
 protected:
  void SetUp() override {
    if (!GetParam().why_not.empty()) GTEST_SKIP() << GetParam().why_not;
  }

  [[nodiscard]] static std::int32_t num_ranks() { return GetParam().num_ranks; }

  static void run(const std::function<void(Transport&)>& fn, std::chrono::milliseconds limit = kPatient) {
    GetParam().run({.time_limit = limit}, fn);
  }

  static void wait(Transport& transport, std::int64_t ticket) {
    transport.wait(ticket);
    GetParam().synchronize();
    transport.check();
  }

  static PatternedMessages patterned(const Transport& transport, int salt, const MessageSizes& sizes) {
    return {transport.rank(), transport.num_ranks(), salt, sizes, GetParam().memory.get()};
  }
  static TestBuffer buffer(std::size_t bytes) { return {bytes, GetParam().memory.get()}; }

  static void exchange(Transport& transport, int salt, const MessageSizes& sizes) {
    PatternedMessages messages = patterned(transport, salt, sizes);
    wait(transport, transport.begin(messages.sends(), messages.recvs(), "test"));
    messages.overwrite_sends();
    messages.expect_received();
  }

  /// The message of the TransportError that fn throws.
  template <typename Fn>
  static std::string transport_error(Fn&& fn) {
    try {
      fn();
    } catch (const TransportError& error) {
      return error.what();
    }
    ADD_FAILURE() << "no TransportError";
    return {};
  }

  static constexpr std::chrono::milliseconds kPatient{20'000};
  static constexpr std::chrono::milliseconds kHasty{400};
};

inline std::string ranks_name(const testing::TestParamInfo<RanksUnderTest>& info) {
  return info.param.name;
}

TEST_P(TransportConformance, RanksKnowThemselves) {
  run([](Transport& transport) {
    EXPECT_EQ(transport.num_ranks(), num_ranks());
    EXPECT_GE(transport.rank(), 0);
    EXPECT_LT(transport.rank(), num_ranks());
    EXPECT_FALSE(transport.name().empty());
  });
}

TEST_P(TransportConformance, UnevenAllToAllPutsEveryByteInItsPlace) {
  run([](Transport& transport) { exchange(transport, 1, uneven_sizes); });
}

TEST_P(TransportConformance, ManyMessagesToOnePeerKeepTheirOrder) {
  run([](Transport& transport) {
    exchange(transport, 2, [](std::int32_t source, std::int32_t target) {
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(200 + source));
      std::iota(sizes.begin(), sizes.end(), target);
      return sizes;
    });
  });
}

TEST_P(TransportConformance, ExchangesMayBeEmpty) {
  run([](Transport& transport) {
    exchange(transport, 3, [](std::int32_t, std::int32_t) { return std::vector<std::int64_t>{}; });
    exchange(transport, 4, [](std::int32_t, std::int32_t) { return std::vector<std::int64_t>{0, 0}; });
  });
}

TEST_P(TransportConformance, RanksSendToThemselves) {
  run([](Transport& transport) {
    exchange(transport, 5, [](std::int32_t source, std::int32_t target) {
      return source == target ? std::vector<std::int64_t>{100, 0, 70'000} : std::vector<std::int64_t>{};
    });
    EXPECT_EQ(transport.bytes_received(), 0);
  });
}

TEST_P(TransportConformance, RanksWithoutMessagesNeedNotTakePart) {
  run([](Transport& transport) {
    const std::int32_t last = num_ranks() - 1;
    if (transport.rank() == 0 || transport.rank() == last)
      exchange(transport, 6, [last](std::int32_t source, std::int32_t target) {
        const bool between_ends = (source == 0 && target == last) || (source == last && target == 0);
        return between_ends ? std::vector<std::int64_t>{33} : std::vector<std::int64_t>{};
      });
    exchange(transport, 7, uneven_sizes);
  });
}

TEST_P(TransportConformance, ExchangesInFlightDoNotMixAndMayBeWaitedForInAnyOrder) {
  run([](Transport& transport) {
    constexpr int kInFlight = 7;
    std::vector<PatternedMessages> messages;
    std::vector<std::int64_t> tickets;
    for (int i = 0; i < kInFlight; ++i) messages.push_back(patterned(transport, i, uneven_sizes));
    for (const auto& m : messages) tickets.push_back(transport.begin(m.sends(), m.recvs(), "test"));
    for (int i = 0; i < kInFlight; ++i) {  // a different order on each rank
      const auto at = static_cast<std::size_t>((3 * i + transport.rank()) % kInFlight);
      wait(transport, tickets[at]);
      messages[at].expect_received();
    }
  });
}

TEST_P(TransportConformance, LargeMessagesArriveWhole) {
  run([](Transport& transport) {
    exchange(transport, 8, [](std::int32_t source, std::int32_t target) {
      return std::vector<std::int64_t>{200'001 + 1'000 * source, 1, 70'000 + target};
    });
  });
}

TEST_P(TransportConformance, RepeatedExchangesStayRight) {
  run([](Transport& transport) {
    for (int salt = 0; salt < 300; ++salt)
      exchange(transport, salt, [salt](std::int32_t source, std::int32_t target) {
        return std::vector<std::int64_t>(static_cast<std::size_t>((salt + source) % 3), (salt * 7 + target * 13) % 90);
      });
  });
}

TEST_P(TransportConformance, BytesFromOtherRanksAreCounted) {
  run([](Transport& transport) {
    const PatternedMessages messages = patterned(transport, 9, uneven_sizes);
    for (int round = 1; round <= 3; ++round) {
      wait(transport, transport.begin(messages.sends(), messages.recvs(), "test"));
      EXPECT_EQ(transport.bytes_received(), round * messages.bytes_from_others());
    }
  });
}

TEST_P(TransportConformance, MessageMemoryIsTouchedThroughItsAccessOnly) {
  if (!GetParam().uses_memory_access) return;  // it knows the memory by itself
  run([](Transport& transport) {
    // "Device" memory holds the complement of what it means.
    const auto complement = [](void* target, const void* source, std::int64_t bytes) {
      std::transform(static_cast<const std::byte*>(source), static_cast<const std::byte*>(source) + bytes,
                     static_cast<std::byte*>(target), [](std::byte byte) { return ~byte; });
    };
    transport.set_memory_access({.read = complement, .write = MemoryAccess::copy_host});
    std::vector<std::uint8_t> sent(9, 0x0f), received(9, 0);
    const auto peer = (transport.rank() + 1) % num_ranks();
    const auto source = (transport.rank() + num_ranks() - 1) % num_ranks();
    const std::vector<Message> sends = {{peer, sent.data(), 9}}, recvs = {{source, received.data(), 9}};
    wait(transport, transport.begin(sends, recvs, "complement on read"));
    EXPECT_THAT(received, testing::Each(0xf0));
    transport.set_memory_access({.read = complement, .write = complement});
    wait(transport, transport.begin(sends, recvs, "complement twice"));
    EXPECT_THAT(received, testing::Each(0x0f));
    transport.agree(0x5a, "a host value");
  });
}

TEST_P(TransportConformance, DifferentSizesAreAnErrorThatNamesTheMessage) {
  run([](Transport& transport) {
    TestBuffer memory = buffer(64);
    const std::int32_t peer = (transport.rank() + 1) % num_ranks();
    const std::int32_t source = (transport.rank() + num_ranks() - 1) % num_ranks();
    const std::vector<Message> sends = {{peer, memory.data(), 4}, {peer, memory.data(), 8}};
    const std::vector<Message> recvs = {{source, memory.data() + 32, 4}, {source, memory.data() + 40, 12}};
    const std::string error =
        transport_error([&] { wait(transport, transport.begin(sends, recvs, "layer 0 forward step 2 fetch")); });
    // A rank may also learn first that another one found the difference.
    const std::string own = "rank " + std::to_string(transport.rank()) +
                            " expected 12 bytes in message 1 of 2 from rank " + std::to_string(source) +
                            " in 'layer 0 forward step 2 fetch', which sent 8";
    EXPECT_THAT(error, testing::HasSubstr("expected 12 bytes in message 1 of 2"));
    EXPECT_THAT(error, testing::AnyOf(own, testing::HasSubstr("failed: ")));
  });
}

TEST_P(TransportConformance, DifferentNumbersOfMessagesAreAnError) {
  for (const std::size_t expected : {std::size_t{1}, std::size_t{3}})
    run([expected](Transport& transport) {
      TestBuffer memory = buffer(64);
      const std::int32_t peer = (transport.rank() + 1) % num_ranks();
      const std::int32_t source = (transport.rank() + num_ranks() - 1) % num_ranks();
      const std::vector<Message> sends(2, Message{peer, memory.data(), 4});
      const std::vector<Message> recvs(expected, Message{source, memory.data() + 32, 4});
      const std::string error = transport_error([&] { wait(transport, transport.begin(sends, recvs, "fetch")); });
      EXPECT_THAT(error, testing::HasSubstr("in 'fetch'"));
    });
}

TEST_P(TransportConformance, RanksAgreeOnEqualValues) {
  run([](Transport& transport) {
    transport.agree(0, "zero");
    exchange(transport, 10, uneven_sizes);
    transport.agree(~std::uint64_t{0}, "ones");
    EXPECT_EQ(transport.bytes_received(),
              PatternedMessages(transport.rank(), num_ranks(), 10, uneven_sizes).bytes_from_others());
  });
}

TEST_P(TransportConformance, DisagreementThrowsOnEveryRankAndLeavesTheTransportUsable) {
  if (num_ranks() == 1) return;  // it cannot disagree
  run([](Transport& transport) {
    const std::int32_t last = num_ranks() - 1;
    try {
      transport.agree(transport.rank() == last ? 0xabcU : 0xdefU, "plan digest");
      ADD_FAILURE() << "rank " << transport.rank() << " agreed";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("plan digest differs between ranks: "),
                                               testing::HasSubstr("0xabc on rank " + std::to_string(last)),
                                               testing::HasSubstr("0xdef on rank")));
    }
    exchange(transport, 11, uneven_sizes);
    transport.agree(1, "plan digest");
  });
}

TEST_P(TransportConformance, WaitsAreLimitedAndTheErrorSaysWhatWasAwaited) {
  run(
      [](Transport& transport) {
        const std::int32_t last = num_ranks() - 1;
        if (transport.rank() != 0) {
          std::this_thread::sleep_for(3 * kHasty);
          return;
        }
        TestBuffer memory = buffer(1'024);
        const std::vector<Message> recvs = {{last, memory.data(), 1'000}, {last, memory.data() + 1'000, 24}};
        const auto started = std::chrono::steady_clock::now();
        EXPECT_EQ(transport_error([&] { wait(transport, transport.begin({}, recvs, "backward step 1 return")); }),
                  "rank 0 waited 0.4 s for 2 messages of 1,024 bytes from rank " + std::to_string(last) +
                      " in 'backward step 1 return'");
        EXPECT_GE(std::chrono::steady_clock::now() - started, kHasty);
        EXPECT_THAT(transport_error([&] { transport.agree(1, "digest"); }),
                    testing::HasSubstr("rank 0: this transport failed before: rank 0 waited 0.4 s"));
      },
      kHasty);
}

TEST_P(TransportConformance, BadMessagesAreRefusedBeforeAnythingStarts) {
  run([](Transport& transport) {
    std::byte byte{};
    const auto begin = [&](const Message& message) {
      transport.begin(std::vector<Message>{message}, std::vector<Message>{message}, "bad");
    };
    EXPECT_THROW(begin({num_ranks(), &byte, 1}), InvalidArgument);
    EXPECT_THROW(begin({-1, &byte, 1}), InvalidArgument);
    EXPECT_THROW(begin({0, &byte, -1}), InvalidArgument);
    EXPECT_THROW(begin({0, nullptr, 1}), InvalidArgument);
    exchange(transport, 12, uneven_sizes);
  });
}

TEST_P(TransportConformance, TicketsAreGoodForOneWait) {
  run([](Transport& transport) {
    const std::int64_t ticket = transport.begin({}, {}, "empty");
    transport.wait(ticket);
    EXPECT_THROW(transport.wait(ticket), InvalidArgument);
    EXPECT_THROW(transport.wait(ticket + 1), InvalidArgument);
  });
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace marble {
namespace {

using std::chrono::milliseconds;

/// Two ranks, each behind the same fault.
void run_faulty(const Fault& fault, const std::function<void(Transport&)>& fn,
                milliseconds limit = milliseconds(20'000)) {
  const TransportOptions options{.time_limit = limit};
  run_local_ranks(2, options, [&](Transport& inner) {
    const auto transport = make_faulty_transport(inner, fault, options);
    fn(*transport);
  });
}

/// A message to the other rank and one from it.
struct Swap {
  explicit Swap(const Transport& transport)
      : peer(1 - transport.rank()), sent(static_cast<char>(10 + transport.rank())) {}

  std::int64_t begin(Transport& transport, std::string_view label) {
    return transport.begin(std::vector<Message>{{peer, &sent, 1}}, std::vector<Message>{{peer, &received, 1}}, label);
  }
  [[nodiscard]] int expected() const { return 10 + peer; }

  std::int32_t peer;
  char sent;
  char received = 0;
};

template <typename Fn>
milliseconds time_of(Fn&& fn) {
  const auto started = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - started);
}

TEST(FaultyTransport, WithoutFaultsItIsTheTransportInside) {
  run_faulty({}, [](Transport& transport) {
    Swap swap(transport);
    transport.wait(swap.begin(transport, "swap"));
    EXPECT_EQ(swap.received, swap.expected());
    EXPECT_EQ(transport.num_ranks(), 2);
    EXPECT_EQ(transport.bytes_received(), 1);
    transport.agree(1, "digest");
  });
}

TEST(FaultyTransport, DelayRunsWhileTheRankWorks) {
  constexpr milliseconds kDelay{500}, kWork{400};
  run_faulty({.delay = kDelay}, [&](Transport& transport) {
    Swap swap(transport);
    const auto step = time_of([&] {
      const auto ticket = swap.begin(transport, "fetch");
      std::this_thread::sleep_for(kWork);
      transport.wait(ticket);
    });
    EXPECT_EQ(swap.received, swap.expected());
    EXPECT_GE(step, kDelay);
    EXPECT_LT(step, kDelay + kWork);
  });
}

TEST(FaultyTransport, DelaysOfExchangesInFlightOverlap) {
  constexpr milliseconds kDelay{400};
  run_faulty({.delay = kDelay}, [&](Transport& transport) {
    Swap first(transport), second(transport);
    const auto both = time_of([&] {
      const auto one = first.begin(transport, "one");
      const auto two = second.begin(transport, "two");
      transport.wait(two);
      transport.wait(one);
    });
    EXPECT_GE(both, kDelay);
    EXPECT_LT(both, 2 * kDelay);
  });
}

TEST(FaultyTransport, StallReachesTheLimitAndNamesRankAndPeer) {
  constexpr milliseconds kLimit{200};
  const TransportOptions options{.time_limit = kLimit};
  std::vector<std::string> errors(2);
  const auto stalls_on_rank_one = [&](Transport& inner) {
    const auto transport = make_faulty_transport(inner, {.stall_at_exchange = inner.rank() == 1 ? 1 : -1}, options);
    Swap first(*transport), second(*transport);
    transport->wait(first.begin(*transport, "step 0"));
    try {
      transport->wait(second.begin(*transport, "step 1"));
    } catch (const TransportError& error) {
      errors[static_cast<std::size_t>(inner.rank())] = error.what();
      throw;
    }
  };
  EXPECT_GE(time_of([&] { EXPECT_THROW(run_local_ranks(2, options, stalls_on_rank_one), TransportError); }), kLimit);
  // Whichever rank reaches its limit first ends the other's wait.
  EXPECT_THAT(errors[0], testing::AllOf(testing::StartsWith("rank 0 "), testing::HasSubstr("from rank 1 in 'step 1'")));
  EXPECT_EQ(errors[1], "rank 1 waited 0.2 s for a message of 1 byte from rank 0 in 'step 1' (injected)");
}

TEST(FaultyTransport, CorruptionIsSeenInOneByteOfOneExchange) {
  run_faulty({.corrupt_at_exchange = 1}, [](Transport& transport) {
    std::vector<std::uint8_t> sent(4, 0x33), received(4, 0);
    const std::int32_t peer = 1 - transport.rank();
    for (int exchange = 0; exchange < 3; ++exchange) {
      transport.wait(transport.begin(std::vector<Message>{{peer, sent.data(), 0}, {peer, sent.data(), 4}},
                                     std::vector<Message>{{peer, received.data(), 0}, {peer, received.data(), 4}},
                                     "swap"));
      EXPECT_THAT(received, testing::ElementsAre(exchange == 1 ? 0xcc : 0x33, 0x33, 0x33, 0x33));
    }
  });
}

TEST(FaultyTransport, FailureThrowsAndPoisons) {
  const auto fails = [](Transport& transport) {
    Swap swap(transport);
    transport.wait(swap.begin(transport, "step 0"));
    try {
      swap.begin(transport, "step 1");
      ADD_FAILURE() << "began";
    } catch (const TransportError& error) {
      EXPECT_EQ(error.what(), fmt::format("rank {} failed in 'step 1' (injected)", transport.rank()));
    }
    transport.agree(1, "digest");
  };
  try {
    run_faulty({.fail_at_exchange = 1}, fails);
    FAIL() << "agreed on a poisoned transport";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("this transport failed before"));
  }
}

}  // namespace
}  // namespace marble

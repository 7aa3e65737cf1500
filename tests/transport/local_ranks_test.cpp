// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// What only ranks as threads promise: how run_local_ranks ends.

#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

namespace marble {
namespace {

std::vector<Message> from(std::int32_t peer, void* data, std::int64_t bytes) {
  return {{peer, data, bytes}};
}

/// Rank waits for a byte from peer, and says in what way that ended.
std::string await_byte(Transport& transport, std::int32_t peer) {
  std::byte byte{};
  try {
    transport.wait(transport.begin({}, from(peer, &byte, 1), "await"));
  } catch (const TransportError& error) {
    return error.what();
  }
  return "received";
}

TEST(LocalRanks, ThrowingRankEndsTheOthersWaitsAtOnceAndItsExceptionIsRethrown) {
  std::atomic<int> ended{0};
  const auto started = std::chrono::steady_clock::now();
  const auto rank_two_throws = [&](Transport& transport) {
    if (transport.rank() == 2) throw std::out_of_range("row 7 of 5");
    EXPECT_THAT(await_byte(transport, 2), testing::HasSubstr("when rank 2 failed: row 7 of 5"));
    ++ended;
    throw TransportError("a consequence");
  };
  EXPECT_THROW(run_local_ranks(4, {}, rank_two_throws), std::out_of_range);
  EXPECT_EQ(ended, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(20));  // the limit is 60 s
}

TEST(LocalRanks, ReturningRankEndsWaitsForWhatItNeverSent) {
  run_local_ranks(3, {}, [](Transport& transport) {
    if (transport.rank() == 0) {
      EXPECT_THAT(await_byte(transport, 1),
                  testing::HasSubstr("from rank 1 in 'await', which returned without sending"));
    }
  });
}

TEST(LocalRanks, WhatARankSentBeforeReturningStillArrives) {
  run_local_ranks(2, {}, [](Transport& transport) {
    std::byte byte{42};
    if (transport.rank() == 0) {
      transport.begin(from(1, &byte, 1), {}, "parting gift");
    } else {
      std::byte received{};
      transport.wait(transport.begin({}, from(0, &received, 1), "parting gift"));
      EXPECT_EQ(received, byte);
    }
  });
}

TEST(LocalRanks, ReceiversNeverSeeTheSendersMemory) {
  run_local_ranks(2, {}, [](Transport& transport) {
    std::byte byte{1};
    if (transport.rank() == 0) {
      const auto ticket = transport.begin(from(1, &byte, 1), {}, "copy");
      transport.wait(ticket);
      byte = std::byte{2};
      transport.agree(0, "overwritten");
    } else {
      std::byte received{};
      const auto ticket = transport.begin({}, from(0, &received, 1), "copy");
      transport.agree(0, "overwritten");
      transport.wait(ticket);
      EXPECT_EQ(received, std::byte{1});
    }
  });
}

TEST(LocalRanks, RankThatRefusesEndsTheOthersWaits) {
  run_local_ranks(3, {}, [](Transport& transport) {
    std::byte received{};
    const auto refuse_or_wait = [&] {
      if (transport.rank() == 1) transport.fail("q has the wrong shape");
      transport.wait(transport.begin({}, from(1, &received, 1), "fetch"));
    };
    try {
      refuse_or_wait();
      ADD_FAILURE() << "rank " << transport.rank() << " got what nobody sent";
    } catch (const TransportError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("q has the wrong shape"));
    }
  });
}

TEST(LocalRanks, MissingRankEndsAnAgreement) {
  const auto one_stays_away = [](Transport& transport) {
    if (transport.rank() != 1) transport.agree(1, "digest");
  };
  try {
    run_local_ranks(3, {}, one_stays_away);
    FAIL() << "agreed without rank 1";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("from rank 1 in 'agreement on digest'"));
  }
}

TEST(LocalRanks, FailingReadStartsNothing) {
  run_local_ranks(1, {}, [](Transport& transport) {
    std::byte sent{3}, received{};
    const auto refuse = [](void*, const void*, std::int64_t) { throw BackendError("device lost"); };
    transport.set_memory_access({.read = refuse, .write = MemoryAccess::copy_host});
    EXPECT_THROW(transport.begin(from(0, &sent, 1), from(0, &received, 1), "first"), BackendError);
    transport.set_memory_access({});
    transport.wait(transport.begin(from(0, &sent, 1), from(0, &received, 1), "second"));
    EXPECT_EQ(received, sent);
  });
}

TEST(LocalRanks, BadCallsAreRefused) {
  const auto nothing = [](Transport&) {};
  EXPECT_THROW(run_local_ranks(0, {}, nothing), InvalidArgument);
  EXPECT_THROW(run_local_ranks(1, {.time_limit = std::chrono::milliseconds(0)}, nothing), InvalidArgument);
  const auto swaps_memory_in_flight = [](Transport& transport) {
    transport.begin({}, {}, "open");
    transport.set_memory_access({});
  };
  EXPECT_THROW(run_local_ranks(1, {}, swaps_memory_in_flight), InvalidArgument);
}

TEST(LocalRanks, ManyRanksMeet) {
  run_local_ranks(64, {}, [](Transport& transport) {
    for (std::uint64_t round = 0; round < 3; ++round) transport.agree(round, "round");
  });
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// What the stream transport promises of memory, beside the common contract: where messages may lie and land, and when.

#include "transport/stream_ranks.hpp"

#include <algorithm>
#include <array>

namespace marble::nccl {
namespace {

class StreamTransportMemory : public StreamTransportRung {};

TEST_P(StreamTransportMemory, WaitReturnsBeforeTheDataIsThere) {
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

TEST_P(StreamTransportMemory, SlowReceiverIsNeverOverwritten) {
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

TEST_P(StreamTransportMemory, ReservedMemoryTakesMessagesInPlaceAndGrows) {
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

TEST_P(StreamTransportMemory, SendsFromAnyMemoryArriveWhole) {
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

TEST_P(StreamTransportMemory, ReservingWithExchangesInFlightIsRefused) {
  ranks(2, GetParam()).run([](Transport& transport) {
    AllToAll messages(transport, 10);
    const auto ticket = messages.begin(transport, "open");
    EXPECT_THROW(transport.reserve(1), InvalidArgument);
    transport.wait(ticket);
    settle(transport);
  });
}

TEST_P(StreamTransportMemory, MoreThanTheStagingHoldsIsRefusedBeforeAnythingStarts) {
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

INSTANTIATE_TEST_SUITE_P(OnHost, StreamTransportMemory, testing::Values(Rung::copy, Rung::put), rung_name);

}  // namespace
}  // namespace marble::nccl

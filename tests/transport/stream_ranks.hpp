// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests of the stream transport share: ranks as threads over a device of the host, and their messages.

#include "transport/thread_ranks.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace marble::nccl {

using std::chrono::milliseconds;
inline constexpr milliseconds kPatient{20'000};
inline constexpr milliseconds kHasty{400};

inline ThreadRanks ranks(std::int32_t num_ranks, Rung rung = Rung::automatic, milliseconds limit = kPatient) {
  return {.num_ranks = num_ranks, .options = {.rung = rung, .time_limit = limit}};
}

/// What the stream did by now: waits for it, and throws what it met.
inline void settle(Transport& transport) {
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

inline std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const TransportError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no TransportError";
  return {};
}

/// A case for each rung that the host can take.
class StreamTransportRung : public testing::TestWithParam<Rung> {
 protected:
  void TearDown() override { KeptMemory::drop(); }
};

inline std::string rung_name(const testing::TestParamInfo<Rung>& rung) {
  return std::string(to_string(rung.param));
}

}  // namespace marble::nccl

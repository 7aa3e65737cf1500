// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Messages whose every byte says which rank sent it, to whom, and where it belongs.

#include "marble/transport.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace marble {

/// Bytes of each message from `source` to `target`, in order.
using MessageSizes = std::function<std::vector<std::int64_t>(std::int32_t source, std::int32_t target)>;

inline std::byte pattern_byte(std::int32_t salt, std::int32_t source, std::int32_t target, std::size_t message,
                              std::int64_t at) {
  std::uint64_t x = static_cast<std::uint64_t>(salt) * 0x9e3779b97f4a7c15U +
                    static_cast<std::uint64_t>(source) * 1'000'003U + static_cast<std::uint64_t>(target) * 10'007U +
                    message * 101U + static_cast<std::uint64_t>(at);
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9U;
  return static_cast<std::byte>(x >> 56);
}

/// Memory for messages that is not the host's.
struct TestMemory {
  std::function<std::byte*(std::size_t bytes)> allocate;
  std::function<void(std::byte*)> free;
  std::function<void(void* to, const void* from, std::size_t bytes)> copy;  // returns when it is done
};

/// Bytes of the host, and their image in a test memory, if there is one.
class TestBuffer {
 public:
  TestBuffer(std::size_t bytes, const TestMemory* memory, std::byte fill = {}) : host(bytes, fill), memory_(memory) {
    if (memory_ == nullptr) return;
    image_ = {memory_->allocate(bytes), memory_->free};
    upload();
  }

  /// What messages name.
  [[nodiscard]] std::byte* data() { return memory_ == nullptr ? host.data() : image_.get(); }
  void upload() {
    if (memory_ != nullptr) memory_->copy(image_.get(), host.data(), host.size());
  }
  void download() {
    if (memory_ != nullptr) memory_->copy(host.data(), image_.get(), host.size());
  }

  std::vector<std::byte> host;

 private:
  const TestMemory* memory_;
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> image_ = {nullptr, [](std::byte*) {}};
};

class PatternedMessages {
 public:
  PatternedMessages(std::int32_t rank, std::int32_t num_ranks, std::int32_t salt, const MessageSizes& sizes,
                    const TestMemory* memory = nullptr)
      : rank_(rank), salt_(salt), memory_(memory) {
    for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
      add(sizes(rank, peer), peer, send_memory_, sends_);
      add(sizes(peer, rank), peer, recv_memory_, recvs_);
    }
    fill_sends();
  }

  [[nodiscard]] const std::vector<Message>& sends() const { return sends_; }
  [[nodiscard]] const std::vector<Message>& recvs() const { return recvs_; }

  [[nodiscard]] std::int64_t bytes_from_others() const {
    std::int64_t bytes = 0;
    for (const Message& message : recvs_)
      if (message.peer != rank_) bytes += message.bytes;
    return bytes;
  }

  void overwrite_sends() {
    for (TestBuffer& buffer : send_memory_) {
      std::fill(buffer.host.begin(), buffer.host.end(), kCanary);
      buffer.upload();
    }
  }

  /// Every byte is what its sender meant, and nothing around a message was touched.
  void expect_received() {
    for (std::size_t i = 0; i < recvs_.size(); ++i) {
      recv_memory_[i].download();
      const auto& memory = recv_memory_[i].host;
      const auto n = static_cast<std::size_t>(recvs_[i].bytes);
      const std::size_t index = index_in_peer(recvs_, i);
      std::size_t wrong = 0;
      for (std::size_t k = 0; k < n; ++k)
        wrong += memory[kMargin + k] != pattern_byte(salt_, recvs_[i].peer, rank_, index, static_cast<std::int64_t>(k));
      EXPECT_EQ(wrong, 0U) << "of " << n << " bytes, message " << i << " from rank " << recvs_[i].peer << " to rank "
                           << rank_;
      for (std::size_t k = 0; k < kMargin; ++k) {
        EXPECT_EQ(memory[k], kCanary) << "before message " << i;
        EXPECT_EQ(memory[kMargin + n + k], kCanary) << "after message " << i;
      }
    }
  }

 private:
  static constexpr std::size_t kMargin = 16;
  static constexpr std::byte kCanary{0xcd};

  void add(const std::vector<std::int64_t>& sizes, std::int32_t peer, std::vector<TestBuffer>& buffers,
           std::vector<Message>& messages) const {
    for (const std::int64_t bytes : sizes) {
      TestBuffer& buffer = buffers.emplace_back(static_cast<std::size_t>(bytes) + 2 * kMargin, memory_, kCanary);
      messages.push_back({peer, buffer.data() + kMargin, bytes});
    }
  }

  static std::size_t index_in_peer(const std::vector<Message>& messages, std::size_t i) {
    return static_cast<std::size_t>(std::count_if(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i),
                                                  [&](const Message& m) { return m.peer == messages[i].peer; }));
  }

  void fill_sends() {
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      const std::size_t index = index_in_peer(sends_, i);
      std::byte* const data = send_memory_[i].host.data() + kMargin;
      for (std::int64_t k = 0; k < sends_[i].bytes; ++k) data[k] = pattern_byte(salt_, rank_, sends_[i].peer, index, k);
      send_memory_[i].upload();
    }
  }

  std::int32_t rank_;
  std::int32_t salt_;
  const TestMemory* memory_;
  std::vector<TestBuffer> send_memory_, recv_memory_;
  std::vector<Message> sends_, recvs_;
};

/// From none to four messages between two ranks, some of them empty, all of different sizes.
inline std::vector<std::int64_t> uneven_sizes(std::int32_t source, std::int32_t target) {
  std::vector<std::int64_t> sizes;
  for (std::int32_t i = 0; i < (source + 2 * target) % 5; ++i)
    sizes.push_back(i % 3 == 1 ? 0 : 1 + 37 * source + 5 * target + 113 * i);
  return sizes;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A transport that hands every call to another one. Derive from it to watch or to change single calls.

#include "marble/transport.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace marble {

class TransportDecorator : public Transport {
 public:
  /// `inner` must outlive it.
  explicit TransportDecorator(Transport& inner) : inner_(inner) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] std::string describe() const override { return inner_.describe(); }
  [[nodiscard]] std::int32_t rank() const override { return inner_.rank(); }
  [[nodiscard]] std::int32_t num_ranks() const override { return inner_.num_ranks(); }
  void set_memory_access(MemoryAccess memory) override { inner_.set_memory_access(std::move(memory)); }
  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override {
    return inner_.begin(sends, recvs, label);
  }
  void wait(std::int64_t ticket) override { inner_.wait(ticket); }
  void agree(std::uint64_t value, std::string_view what) override { inner_.agree(value, what); }
  [[nodiscard]] std::int64_t bytes_received() const override { return inner_.bytes_received(); }
  void check() override { inner_.check(); }
  void fail(std::string_view reason) override { inner_.fail(reason); }
  [[nodiscard]] bool reserves() const override { return inner_.reserves(); }
  void reserve(std::int64_t bytes) override { inner_.reserve(bytes); }
  [[nodiscard]] void* reserved() const override { return inner_.reserved(); }

 protected:
  Transport& inner_;
};

}  // namespace marble

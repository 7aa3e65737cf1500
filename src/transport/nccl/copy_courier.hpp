// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copy engines write into memory that peers have mapped, then raise the peer's word. A copy is asked for only when the
// receiver's compute stream has made the memory free (its credit) and the sender's has made the data, as the host sees
// in their words: so the side queue itself never waits, and no queue can block another.

#include "transport/nccl/courier.hpp"
#include "transport/nccl/words.hpp"

#include <cstddef>
#include <vector>

namespace marble::nccl {

class CopyCourier final : public Courier {
 public:
  CopyCourier(Device& device, const Words& words, std::int32_t rank, std::int32_t num_ranks)
      : device_(device),
        words_(words),
        rank_(rank),
        regions_(static_cast<std::size_t>(num_ranks)),
        is_blocked_(static_cast<std::size_t>(num_ranks)) {}

  /// Where the peers' regions are mapped, by rank. Not while exchanges are under way.
  void set_regions(std::vector<std::byte*> regions) { regions_ = std::move(regions); }

  void begin_round() override;
  Progress advance(Exchange& exchange) override;
  [[nodiscard]] bool may_have_arrived(std::int32_t peer, Word sequence) const override {
    return load(words_.arrived(peer)) >= sequence;
  }
  void abort() noexcept override {}

 private:
  void start(const Outgoing& parcel);

  Device& device_;
  Words words_;
  std::int32_t rank_;
  std::vector<std::byte*> regions_;
  Word begun_ = 0;                // exchanges, by this rank's compute stream
  std::vector<char> is_blocked_;  // by peer: an earlier parcel has not left
};

}  // namespace marble::nccl

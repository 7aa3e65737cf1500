// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copy engines write into memory that peers have mapped, then raise the peer's word. All of it is asked for as soon as
// both hosts have begun, and waits in the peer's side queue for the sender's data (a mark in its compute stream) and
// for the receiver's memory (its credit). So a compute stream only ever waits for what has been asked for already: host
// threads may block in calls that wait for the device, and no copy is stuck behind them.

#include "transport/nccl/courier.hpp"
#include "transport/nccl/words.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace marble::nccl {

class CopyCourier final : public Courier {
 public:
  /// `words` have rows for all ranks.
  CopyCourier(Device& device, const Words& words, std::int32_t rank, std::int32_t num_ranks)
      : device_(device),
        words_(words),
        rank_(rank),
        num_ranks_(num_ranks),
        regions_(static_cast<std::size_t>(num_ranks)),
        is_blocked_(static_cast<std::size_t>(num_ranks)) {}

  /// Where the peers' regions are mapped, by rank. Not while exchanges are under way.
  void set_regions(std::vector<std::byte*> regions) { regions_ = std::move(regions); }

  [[nodiscard]] std::int32_t num_side_queues() const override { return num_ranks_; }
  [[nodiscard]] std::vector<std::pair<Queue, Queue>> independent_queues() const override;
  [[nodiscard]] bool has_region() const override { return true; }
  [[nodiscard]] bool wants_announcements() const override { return false; }

  void enqueue_credits(const Exchange& exchange) override;
  [[nodiscard]] bool asks_for(const Exchange& exchange) const override { return has_device_sends(exchange); }
  void enqueue_wait(const Exchange& exchange, std::vector<WordOp>& ops) override;

  void begin_round() override { is_blocked_.assign(is_blocked_.size(), 0); }
  [[nodiscard]] std::int32_t advance(Exchange& exchange) override;
  [[nodiscard]] bool may_have_arrived(std::int32_t peer, Word sequence) const override {
    return load(words_.arrived(peer)) >= sequence;
  }
  void abort() noexcept override {}

  void release_compute() noexcept override { words_.release_compute(); }
  void release_side() noexcept override { words_.release_side(); }

 private:
  void start(const Outgoing& parcel, const Mark& begun);

  Device& device_;
  Words words_;
  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::vector<std::byte*> regions_;
  std::vector<char> is_blocked_;  // by peer: an earlier parcel has not left
};

}  // namespace marble::nccl

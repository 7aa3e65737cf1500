// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sends that meet receives. Those of one exchange are one group, asked for in the order of beginning: a library pairs
// them in the order of each rank's stream, so ranks begin all exchanges in one order.

#include "transport/nccl/courier.hpp"
#include "transport/nccl/library.hpp"
#include "transport/nccl/words.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace marble::nccl {

class SendRecvCourier final : public Courier {
 public:
  SendRecvCourier(Device& device, const Words& words, std::int32_t rank, std::unique_ptr<Communicator> communicator)
      : device_(device), words_(words), rank_(rank), communicator_(std::move(communicator)) {}

  static constexpr std::int32_t kSideQueues = 1;
  [[nodiscard]] std::int32_t num_side_queues() const override { return kSideQueues; }
  [[nodiscard]] std::vector<std::pair<Queue, Queue>> independent_queues() const override { return {}; }
  [[nodiscard]] bool has_region() const override { return false; }
  [[nodiscard]] bool wants_announcements() const override { return true; }

  void enqueue_credits(const Exchange&) override {}
  [[nodiscard]] bool asks_for(const Exchange&) const override { return true; }
  void enqueue_wait(const Exchange& exchange, std::vector<WordOp>& ops) override;

  void begin_round() override { blocked_by_ = kAll; }
  [[nodiscard]] std::int32_t advance(Exchange& exchange) override;
  [[nodiscard]] bool may_have_arrived(std::int32_t, Word) const override { return true; }
  void abort() noexcept override { communicator_->abort(); }

  void release_compute() noexcept override {}  // the communicator's end ends the waits
  void release_side() noexcept override {}

 private:
  static constexpr Queue kSide = side_queue(0);

  Device& device_;
  Words words_;
  std::int32_t rank_;
  std::unique_ptr<Communicator> communicator_;
  std::int32_t blocked_by_ = kAll;  // in this round
};

}  // namespace marble::nccl

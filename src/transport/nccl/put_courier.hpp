// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One-sided puts into windows: data, then a word that says so. Receivers put credits in the same way. A put's source
// must lie in a window too: what does not is copied through the outbox, a window of this rank, half by half.
//
// Words of our own, not the library's signals: a stream that waits for a signal cannot be released when the peer has
// died, since nobody else may write it and the communicator's end leaves it waiting; and a signal counts, so that a
// credit and data from one peer would be taken for each other.
//
// A communicator does everything in the order of asking, whichever the queue. Data waits for credits, so credits have a
// communicator of their own; and exchanges start whole and in order, so ranks begin all of them in one order.

#include "transport/nccl/courier.hpp"
#include "transport/nccl/library.hpp"
#include "transport/nccl/words.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace marble::nccl {

class PutCourier final : public Courier {
 public:
  /// `outbox_bytes` are the same on all ranks. `words` are this rank's own.
  PutCourier(Device& device, const Words& words, std::int32_t rank, std::int32_t num_ranks, std::int64_t outbox_bytes);
  ~PutCourier() override;
  PutCourier(const PutCourier&) = delete;
  PutCourier& operator=(const PutCourier&) = delete;

  // Making it, after its side queues; each on all ranks before the next.

  void set_communicators(std::unique_ptr<Communicator> data, std::unique_ptr<Communicator> credits);
  void allocate();
  void open(Deadline deadline);
  /// Puts one word to the next rank by each communicator: a library may set itself up now, with all ranks.
  void try_puts();

  /// The region's memory, in a window; opened on all ranks after all have allocated. Not while exchanges are under way.
  [[nodiscard]] std::byte* allocate_region(std::int64_t bytes);
  void open_region(Deadline deadline) { data_->open(*region_, deadline); }
  void close_region() noexcept { region_.reset(); }

  static constexpr std::int32_t kSideQueues = 4;
  [[nodiscard]] std::int32_t num_side_queues() const override { return kSideQueues; }
  [[nodiscard]] std::vector<std::pair<Queue, Queue>> independent_queues() const override;
  [[nodiscard]] bool has_region() const override { return true; }
  [[nodiscard]] bool wants_announcements() const override { return true; }

  void enqueue_credits(const Exchange&) override {}  // the progress thread's, after the exchange's mark
  [[nodiscard]] bool asks_for(const Exchange&) const override { return true; }
  void enqueue_wait(const Exchange& exchange, std::vector<WordOp>& ops) override;

  void begin_round() override { blocked_by_ = kAll; }
  [[nodiscard]] std::int32_t advance(Exchange& exchange) override;
  [[nodiscard]] bool may_have_arrived(std::int32_t, Word) const override { return true; }
  void abort() noexcept override {}  // released queues run out by themselves

  void release_compute() noexcept override;
  void release_side() noexcept override;

 private:
  static constexpr Queue kData = side_queue(0), kCredits = side_queue(1), kReleases = side_queue(2),
                         kOutbox = side_queue(3);

  /// Words in a window: for each peer one that it writes here, and one that is put into the peer's window.
  class WindowWords {
   public:
    [[nodiscard]] static std::int64_t bytes(std::int32_t num_ranks) { return 2 * num_ranks * kWord; }
    void place(const Window& window, std::int32_t rank, std::int32_t num_ranks) {
      window_ = &window;
      rank_ = rank;
      num_ranks_ = num_ranks;
    }
    [[nodiscard]] Word* from(std::int32_t peer) const { return data() + peer; }
    [[nodiscard]] Word* to(std::int32_t peer) const { return data() + num_ranks_ + peer; }
    [[nodiscard]] Put put(std::int32_t peer) const {
      return {reinterpret_cast<const std::byte*>(to(peer)), kWord, peer, window_, rank_ * kWord};
    }

   private:
    static constexpr std::int64_t kWord = sizeof(Word);
    [[nodiscard]] Word* data() const { return reinterpret_cast<Word*>(window_->data()); }

    const Window* window_ = nullptr;
    std::int32_t rank_ = 0;
    std::int32_t num_ranks_ = 0;
  };

  [[nodiscard]] bool give_credits(Exchange& exchange);
  [[nodiscard]] bool start(const Exchange& exchange);
  [[nodiscard]] bool put_data(const Outgoing& parcel, std::vector<Put>& puts);
  [[nodiscard]] bool put_through_outbox(Put put, std::vector<Put>& puts);
  [[nodiscard]] bool flush(std::vector<Put>& puts);
  void release(const WindowWords& words) noexcept;

  Device& device_;
  Words words_;
  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::int64_t half_bytes_;                            // of the outbox
  std::array<std::unique_ptr<Mark>, 2> half_is_free_;  // null: it has not been used
  std::size_t half_ = 0;                               // that is filled now
  std::int64_t half_used_ = 0;                         // by puts that have not been flushed
  std::unique_ptr<Communicator> data_, credits_;
  std::unique_ptr<Window> arrival_window_, credit_window_, outbox_, region_;
  WindowWords arrivals_, credit_words_;
  std::int32_t blocked_by_ = kAll;  // in this round
};

}  // namespace marble::nccl

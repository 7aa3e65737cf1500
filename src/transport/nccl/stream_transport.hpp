// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The transport between devices whose exchanges are in the order of a stream.

#include "transport/nccl/choice.hpp"
#include "transport/nccl/copy_courier.hpp"
#include "transport/nccl/engine.hpp"
#include "transport/nccl/failure.hpp"
#include "transport/nccl/library.hpp"
#include "transport/nccl/put_courier.hpp"
#include "transport/nccl/staging.hpp"
#include "transport/nccl/words.hpp"

#include "marble/transport.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace marble::nccl {

/// What this process has to move bytes with.
struct Fabric {
  std::unique_ptr<Device> device;
  std::string no_waits;              // why its streams cannot wait for words; empty: they can
  std::unique_ptr<Library> library;  // null: none
  std::string no_library;            // why
};

class StreamTransport final : public Transport {
 public:
  /// `options` leave nothing open (resolve). Collective.
  StreamTransport(const NcclOptions& options, Fabric fabric);
  ~StreamTransport() override;
  StreamTransport(const StreamTransport&) = delete;
  StreamTransport& operator=(const StreamTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::string describe() const override { return description_; }
  [[nodiscard]] std::int32_t rank() const override { return rank_; }
  [[nodiscard]] std::int32_t num_ranks() const override { return num_ranks_; }
  void set_memory_access(MemoryAccess) override {}
  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override;
  void wait(std::int64_t ticket) override;
  void agree(std::uint64_t value, std::string_view what) override;
  [[nodiscard]] std::int64_t bytes_received() const override { return bytes_received_; }
  void check() override { failure_.check(); }
  void fail(std::string_view reason) override { engine_->fail(std::string(reason)); }
  [[nodiscard]] bool reserves() const override { return courier_ && courier_->has_region(); }
  void reserve(std::int64_t bytes) override;
  [[nodiscard]] void* reserved() const override;

 private:
  struct Wait {
    Word number;
    std::shared_ptr<const Exchange> exchange;
  };

  // Making it.
  void choose_rung(const NcclOptions& options);
  [[nodiscard]] Capability capability(const NcclOptions& options) const;
  [[nodiscard]] std::string set_up(Rung rung);
  void set_up_copy();
  void set_up_put();
  void set_up_sendrecv();
  void use_courier(std::unique_ptr<Courier> courier);
  void drop_courier() noexcept;
  [[nodiscard]] std::unique_ptr<Communicator> join(Traffic traffic);
  void use_words(std::unique_ptr<WordMemory> memory, bool all_rows);
  void share_words();
  void check_queues();
  [[nodiscard]] bool passes(Queue waiting, Queue working);
  void map_regions(std::int64_t reserved_bytes);
  void unmap_regions() noexcept;
  [[nodiscard]] bool drain();
  [[nodiscard]] bool is_idle();
  [[nodiscard]] bool is_left_alone() const;
  void give_back_memory() noexcept;
  template <typename Fn>
  void on_all_ranks(std::string_view what, Fn&& fn);

  // Exchanges.
  [[nodiscard]] Place place_of(std::span<const Message> messages, std::string_view label) const;
  template <typename P>
  std::vector<P> parcels(std::span<const Message> messages, std::vector<Word>& counts, std::string_view label) const;
  template <typename Fn>
  void poisoning(Fn&& fn);
  void place_recvs(Exchange& exchange);
  [[nodiscard]] std::int64_t stage(std::int64_t bytes, const Exchange& exchange);
  void copy_own(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label);
  void enqueue_begin(Exchange& exchange);
  void enqueue_wait(const std::shared_ptr<Exchange>& exchange);
  void finish_host(Exchange& exchange);

  // The watchdog.
  void watch();
  [[nodiscard]] std::string describe_stuck(const Wait& wait) const;
  void on_failure();
  [[nodiscard]] bool has_passed_all() const { return load(words_.wait_passed()) >= num_waits_; }

  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::chrono::milliseconds time_limit_;
  Fabric fabric_;
  Device& device_;
  std::string name_, description_;
  Failure failure_;

  std::unique_ptr<WordMemory> word_memory_;
  Words words_;
  Staging staging_;
  std::byte* region_ = nullptr;  // staging, then reserved memory
  std::int64_t reserved_bytes_ = 0;
  std::vector<std::byte*> mapped_;    // peers' regions
  std::unique_ptr<Courier> courier_;  // null: there is one rank
  CopyCourier* copy_ = nullptr;       // if it is that
  PutCourier* put_ = nullptr;         // if it is that

  std::vector<Word> num_sent_, num_expected_;  // parcels, by peer
  Word num_exchanges_ = 0;                     // with device parcels
  std::map<std::int64_t, std::shared_ptr<Exchange>> in_flight_;
  std::int64_t next_ticket_ = 0;
  std::int64_t bytes_received_ = 0;

  std::mutex mutex_;
  std::condition_variable watchdog_woken_;
  std::deque<Wait> waits_;  // that the compute stream may not have passed
  std::atomic<Word> num_waits_{0};
  bool stops_ = false;

  std::unique_ptr<Engine> engine_;
  std::thread watchdog_;
};

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The progress thread: it owns the connections and the courier, compares what senders send with what receivers expect,
// starts parcels when both sides are ready, and carries the collective calls.

#include "transport/nccl/connections.hpp"
#include "transport/nccl/courier.hpp"
#include "transport/nccl/failure.hpp"
#include "transport/staged.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace marble::nccl {

class Engine final : private FrameHandler {
 public:
  /// `on_failure` is called once, on the thread that found the failure.
  Engine(Connections connections, Device& device, Failure& failure, std::chrono::milliseconds time_limit,
         std::function<void()> on_failure);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Calls of the transport's user.

  /// From here on exchanges may begin. `courier` lives as long as this.
  void set_courier(Courier* courier);
  void begin(std::shared_ptr<Exchange> exchange);
  /// Returns when the host parcels of the exchange have come and gone. Throws TransportError.
  void wait_host(const Exchange& exchange);
  /// Returns when the device has been asked for all that this rank sends. Throws TransportError.
  void wait_started(const Exchange& exchange);
  /// Every rank's payload, by rank. Throws TransportError.
  [[nodiscard]] std::vector<std::string> all_gather(std::string payload, std::string_view what);

  // Anyone's calls.

  void fail(const std::string& reason) { fail_for(rank_, reason); }
  /// After a failure: true when every rank that this one is connected to has heard of it.
  [[nodiscard]] bool is_known() const { return is_known_; }
  /// After a failure: true when none of those will write to this rank's memory any more.
  [[nodiscard]] bool is_quiet() const { return is_quiet_; }

 private:
  struct Round {
    std::vector<std::optional<std::string>> payloads;  // by rank
    std::int32_t missing = 0;
  };

  void command(std::function<void()> fn);
  void run();
  void take_commands();
  void advance();
  void start(const std::shared_ptr<Exchange>& exchange);
  void expect(const std::shared_ptr<Exchange>& exchange, Incoming& parcel);
  void match(Exchange& exchange, Outgoing& parcel, Post post);
  void gather(std::int64_t round, std::int32_t rank, std::string payload);
  void deliver(std::int64_t round, std::vector<std::string> payloads);
  void settle_failure();
  void note_failure(std::int32_t peer, bool is_done);
  void announce_failure();
  void fail_for(std::int32_t origin, const std::string& reason);

  void on_frame(std::int32_t peer, FrameType type, std::string payload) override;
  void on_closed(std::int32_t peer) override;
  void on_post(std::int32_t peer, const std::string& payload);
  void on_announcement(std::int32_t peer, Word sequence);
  void on_host_data(std::int32_t peer, std::string payload);
  void on_leave(std::int32_t peer);

  // Of the progress thread.
  Connections connections_;
  Device& device_;
  Courier* courier_ = nullptr;
  std::deque<std::shared_ptr<Exchange>> open_;  // with device parcels to start, oldest first
  // By peer and sequence: posts before their sends, sends before their posts, and receives before their data or, where
  // the courier wants announcements, before those.
  std::vector<std::map<Word, Post>> early_posts_;
  std::vector<std::map<Word, std::shared_ptr<Exchange>>> unmatched_;
  std::vector<std::map<Word, std::shared_ptr<Exchange>>> awaited_recvs_;
  std::vector<Word> last_device_recvs_;  // by peer: the last that was posted
  std::vector<char> has_left_;
  std::vector<char> knows_failure_, is_done_;  // by peer, after a failure: heard of it; writes no more
  bool is_announced_ = false;
  bool says_quiet_ = false;

  // Shared.
  Failure& failure_;
  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::chrono::milliseconds time_limit_;
  std::function<void()> on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> commands_;
  std::atomic<bool> has_commands_{false};
  std::map<std::int64_t, Round> rounds_;                       // of collective calls, on rank 0
  std::map<std::int64_t, std::vector<std::string>> gathered_;  // by round
  std::int64_t last_round_ = 0;                                // of the user
  std::string announcement_;                                   // of a failure: the rank that it is about, and why
  std::atomic<bool> is_known_{false}, is_quiet_{false};
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace marble::nccl

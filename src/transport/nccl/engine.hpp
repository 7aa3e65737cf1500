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
  /// Returns when the courier has asked for all of the exchange. Throws TransportError.
  void wait_started(const Exchange& exchange);
  /// Every rank's payload, by rank. Throws TransportError.
  [[nodiscard]] std::vector<std::string> all_gather(std::string payload, std::string_view what);

  // Anyone's calls.

  void fail(const std::string& reason) { fail_for(rank_, reason); }

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
  void rest();
  void announce_failure();
  void fail_for(std::int32_t origin, const std::string& reason);

  void on_frame(std::int32_t peer, FrameType type, std::string payload) override;
  void on_closed(std::int32_t peer) override;
  void on_post(std::int32_t peer, const std::string& payload);
  void on_host_data(std::int32_t peer, std::string payload);
  void on_leave(std::int32_t peer);

  // Of the progress thread.
  Connections connections_;
  Device& device_;
  Courier* courier_ = nullptr;
  std::deque<std::shared_ptr<Exchange>> open_;  // with device parcels to start, oldest first
  std::chrono::steady_clock::time_point last_start_{};
  // By peer and sequence: posts before their sends, sends before their posts, and host parcels before their data.
  std::vector<std::map<Word, Post>> early_posts_;
  std::vector<std::map<Word, std::shared_ptr<Exchange>>> unmatched_;
  std::vector<std::map<Word, std::shared_ptr<Exchange>>> host_recvs_;
  std::vector<Word> last_device_recvs_;  // by peer: the last that was posted
  std::vector<char> has_left_;
  bool is_announced_ = false;

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
  std::atomic<bool> stops_{false};
  std::thread thread_;
};

}  // namespace marble::nccl

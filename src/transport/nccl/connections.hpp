// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Connections between ranks, and frames on them. Those to rank 0 are there from the start; the higher of two other
// ranks connects when it first has to do with the lower. One thread uses them; `wake` is anyone's.

#include "transport/nccl/rendezvous.hpp"
#include "transport/nccl/socket.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace marble::nccl {

enum class FrameType : std::uint32_t { post, announcement, host_data, gather, gathered, failure, quiet, leave };

class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual void on_frame(std::int32_t peer, FrameType type, std::string payload) = 0;
  /// The connection broke. Called once for a peer.
  virtual void on_closed(std::int32_t peer) = 0;
};

class Connections {
 public:
  Connections(Meeting meeting, std::chrono::milliseconds time_limit);

  [[nodiscard]] std::int32_t rank() const { return rank_; }
  [[nodiscard]] std::int32_t num_ranks() const { return num_ranks_; }

  /// Makes sure that there is, or will be, a connection. Throws TransportError when the peer cannot be reached.
  void connect(std::int32_t peer);
  /// Queues a frame; it leaves in this call or in `poll`.
  void send(std::int32_t peer, FrameType type, std::string payload);
  /// To all ranks with a connection.
  void send_to_connected(FrameType type, const std::string& payload);

  /// Waits at most `timeout` (negative: without limit) for frames, room to write, or `wake`.
  void poll(std::chrono::milliseconds timeout, FrameHandler& handler);
  void wake();

  [[nodiscard]] bool is_connected(std::int32_t peer) const {
    return peers_[static_cast<std::size_t>(peer)].socket.is_open();
  }
  [[nodiscard]] bool is_flushed() const;

 private:
  struct Peer {
    Socket socket;
    bool closed = false;
    bool watches_room = false;  // to write
    std::deque<std::string> outgoing;
    std::size_t written = 0;  // of the first outgoing
    std::string incoming;
  };
  struct FrameHeader {
    FrameType type;
    std::uint32_t reserved = 0;
    std::uint64_t bytes;
  };

  [[nodiscard]] Peer& at(std::int32_t peer) { return peers_[static_cast<std::size_t>(peer)]; }
  void adopt(std::int32_t peer, Socket socket);
  void accept_one();
  void flush(std::int32_t peer, FrameHandler* handler);
  void read(std::int32_t peer, FrameHandler& handler);
  void parse(std::int32_t peer, FrameHandler& handler);
  void close(std::int32_t peer, FrameHandler* handler);
  void watch(std::int32_t peer, bool for_room);

  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::chrono::milliseconds time_limit_;
  std::vector<Endpoint> endpoints_;
  Socket listener_;
  Socket poll_;   // epoll
  Socket event_;  // eventfd
  std::vector<char> scratch_;
  std::vector<Peer> peers_;
};

}  // namespace marble::nccl

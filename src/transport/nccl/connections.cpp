// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/connections.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace marble::nccl {
namespace {

// What an event is about: a rank, or one of these.
constexpr std::int64_t kListener = -1;
constexpr std::int64_t kWake = -2;

void watch_descriptor(const Socket& poll, const Socket& socket, int operation, std::uint32_t events,
                      std::int64_t about) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(about);
  if (epoll_ctl(poll.get(), operation, socket.get(), &event) != 0)
    throw TransportError(fmt::format("watching a connection: {}", std::strerror(errno)));
}

}  // namespace

Connections::Connections(Meeting meeting, std::chrono::milliseconds time_limit)
    : rank_(meeting.rank),
      num_ranks_(meeting.num_ranks),
      time_limit_(time_limit),
      endpoints_(std::move(meeting.endpoints)),
      listener_(std::move(meeting.listener)),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      scratch_(std::size_t{256} << 10),
      peers_(static_cast<std::size_t>(num_ranks_)) {
  watch_descriptor(poll_, event_, EPOLL_CTL_ADD, EPOLLIN, kWake);
  if (listener_.is_open()) watch_descriptor(poll_, listener_, EPOLL_CTL_ADD, EPOLLIN, kListener);
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer)
    if (Socket& socket = meeting.connections[static_cast<std::size_t>(peer)]; socket.is_open())
      adopt(peer, std::move(socket));
}

void Connections::adopt(std::int32_t peer, Socket socket) {
  Peer& entry = at(peer);
  entry.socket = std::move(socket);
  watch_descriptor(poll_, entry.socket, EPOLL_CTL_ADD, EPOLLIN, peer);
  flush(peer, nullptr);
}

void Connections::watch(std::int32_t peer, bool for_room) {
  if (std::exchange(at(peer).watches_room, for_room) == for_room) return;
  watch_descriptor(poll_, at(peer).socket, EPOLL_CTL_MOD, for_room ? EPOLLIN | EPOLLOUT : EPOLLIN, peer);
}

void Connections::connect(std::int32_t peer) {
  if (at(peer).socket.is_open() || at(peer).closed || peer >= rank_) return;
  const Endpoint& endpoint = endpoints_[static_cast<std::size_t>(peer)];
  const Deadline deadline = std::chrono::steady_clock::now() + time_limit_;
  auto socket = connect_to(endpoint.host, endpoint.port, deadline);
  const Hello hello{.rank = rank_, .num_ranks = num_ranks_};
  if (!socket || !write_all(*socket, {reinterpret_cast<const char*>(&hello), sizeof(hello)}, deadline))
    throw TransportError(
        fmt::format("rank {} could not connect to rank {} at {}:{}", rank_, peer, endpoint.host, endpoint.port));
  adopt(peer, std::move(*socket));
}

void Connections::accept_one() {
  constexpr std::chrono::milliseconds kHelloLimit{2'000};
  const Deadline deadline = std::chrono::steady_clock::now() + kHelloLimit;
  auto socket = accept_from(listener_, deadline);
  Hello hello;
  if (!socket || !read_all(*socket, reinterpret_cast<char*>(&hello), sizeof(hello), deadline)) return;
  const bool is_peer = hello.magic == Hello::kMagic && hello.num_ranks == num_ranks_ && hello.rank > rank_ &&
                       hello.rank < num_ranks_ && !at(hello.rank).socket.is_open();
  if (is_peer) adopt(hello.rank, std::move(*socket));
}

void Connections::send(std::int32_t peer, FrameType type, std::string payload) {
  connect(peer);
  Peer& entry = at(peer);
  if (entry.closed) return;
  const FrameHeader header{.type = type, .bytes = payload.size()};
  std::string head(reinterpret_cast<const char*>(&header), sizeof(header));
  constexpr std::size_t kSmall = 4'096;
  if (payload.size() <= kSmall) {
    entry.outgoing.push_back(std::move(head += payload));
  } else {
    entry.outgoing.push_back(std::move(head));
    entry.outgoing.push_back(std::move(payload));
  }
  if (entry.socket.is_open()) flush(peer, nullptr);
}

void Connections::send_to_connected(FrameType type, const std::string& payload) {
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer)
    if (at(peer).socket.is_open()) send(peer, type, payload);
}

void Connections::flush(std::int32_t peer, FrameHandler* handler) {
  Peer& entry = at(peer);
  while (!entry.outgoing.empty()) {
    const std::string& bytes = entry.outgoing.front();
    const ssize_t done =
        ::send(entry.socket.get(), bytes.data() + entry.written, bytes.size() - entry.written, MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EAGAIN) return watch(peer, true);
    // A broken connection is seen, and reported, when it is read.
    if (done < 0) return handler != nullptr ? close(peer, handler) : entry.outgoing.clear();
    entry.written += static_cast<std::size_t>(done);
    if (entry.written < bytes.size()) continue;
    entry.outgoing.pop_front();
    entry.written = 0;
  }
  watch(peer, false);
}

void Connections::read(std::int32_t peer, FrameHandler& handler) {
  Peer& entry = at(peer);
  while (true) {
    const ssize_t done = recv(entry.socket.get(), scratch_.data(), scratch_.size(), 0);
    if (done > 0) {
      entry.incoming.append(scratch_.data(), static_cast<std::size_t>(done));
      parse(peer, handler);
    } else if (done == 0 || (errno != EINTR && errno != EAGAIN)) {
      return close(peer, &handler);
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void Connections::parse(std::int32_t peer, FrameHandler& handler) {
  Peer& entry = at(peer);
  std::size_t begin = 0;
  while (entry.incoming.size() - begin >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, entry.incoming.data() + begin, sizeof(header));
    if (entry.incoming.size() - begin - sizeof(header) < header.bytes) {
      entry.incoming.reserve(begin + sizeof(header) + header.bytes);
      break;
    }
    handler.on_frame(peer, header.type, entry.incoming.substr(begin + sizeof(header), header.bytes));
    begin += sizeof(header) + header.bytes;
  }
  entry.incoming.erase(0, begin);
}

void Connections::close(std::int32_t peer, FrameHandler* handler) {
  Peer& entry = at(peer);
  entry.socket = Socket();
  entry.closed = true;
  entry.outgoing.clear();
  if (handler != nullptr) handler->on_closed(peer);
}

void Connections::poll(std::chrono::milliseconds timeout, FrameHandler& handler) {
  std::array<epoll_event, 64> events;
  const int ready =
      epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), static_cast<int>(timeout.count()));
  for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(std::max(ready, 0)))) {
    const auto about = static_cast<std::int64_t>(event.data.u64);
    if (about == kWake) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t done = ::read(event_.get(), &count, sizeof(count));
    } else if (about == kListener) {
      accept_one();
    } else {
      const auto peer = static_cast<std::int32_t>(about);
      if ((event.events & EPOLLOUT) != 0) flush(peer, &handler);
      if (at(peer).socket.is_open() && (event.events & ~std::uint32_t{EPOLLOUT}) != 0) read(peer, handler);
    }
  }
}

void Connections::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = ::write(event_.get(), &one, sizeof(one));
}

bool Connections::is_flushed() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.outgoing.empty(); });
}

}  // namespace marble::nccl

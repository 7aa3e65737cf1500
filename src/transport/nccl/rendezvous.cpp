// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/rendezvous.hpp"

#include "transport/nccl/wire.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace marble::nccl {
namespace {

using std::chrono::milliseconds;

double seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

bool write_answer(const Socket& socket, const std::string& bytes, Deadline deadline) {
  return write_all(socket, Writer().text(bytes).take(), deadline);
}

std::optional<std::string> read_answer(const Socket& socket, Deadline deadline) {
  std::int64_t size = 0;
  if (!read_all(socket, reinterpret_cast<char*>(&size), sizeof(size), deadline)) return std::nullopt;
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!read_all(socket, bytes.data(), bytes.size(), deadline)) return std::nullopt;
  return bytes;
}

/// Rank 0's side.
class Host {
 public:
  Host(Meeting& meeting, milliseconds limit)
      : meeting_(meeting), limit_(limit), deadline_(std::chrono::steady_clock::now() + limit) {}

  void receive_all(std::int32_t port) {
    const Socket listener = listen_on(port);
    while (missing_ > 0) {
      auto socket = accept_from(listener, deadline_);
      if (!socket) throw TransportError(describe_missing(port));
      receive(std::move(*socket));
    }
    Writer answer;
    answer.text({});
    for (const Endpoint& endpoint : meeting_.endpoints) answer.text(endpoint.host).value(endpoint.port);
    const std::string bytes = answer.take();
    for (const Socket& socket : meeting_.connections)
      if (socket.is_open() && !write_answer(socket, bytes, deadline_))
        throw TransportError("rank 0 lost a rank that had just come");
  }

 private:
  void receive(Socket socket) {
    // Whoever connects and says nothing is no rank; it must not use up the others' time.
    constexpr milliseconds kHelloLimit{2'000};
    Hello hello;
    const Deadline deadline = std::min(deadline_, std::chrono::steady_clock::now() + kHelloLimit);
    if (!read_all(socket, reinterpret_cast<char*>(&hello), sizeof(hello), deadline) || hello.magic != Hello::kMagic)
      return;
    if (const std::string refusal = refuse(hello); !refusal.empty()) {
      [[maybe_unused]] const bool told = write_answer(socket, Writer().text(refusal).take(), deadline_);
      throw InvalidArgument(refusal);
    }
    const auto index = static_cast<std::size_t>(hello.rank);
    // A rank that gave up and came again: its first connection is dead.
    if (!meeting_.connections[index].is_open()) --missing_;
    meeting_.endpoints[index] = {peer_address(socket), hello.port};
    meeting_.connections[index] = std::move(socket);
  }

  [[nodiscard]] std::string refuse(const Hello& hello) const {
    if (hello.protocol != Hello::kProtocol)
      return fmt::format("rank {} speaks version {} of the transport, rank 0 version {}", hello.rank, hello.protocol,
                         Hello::kProtocol);
    if (hello.num_ranks != meeting_.num_ranks)
      return fmt::format("rank {} counts {} ranks, rank 0 counts {}", hello.rank, hello.num_ranks, meeting_.num_ranks);
    if (hello.rank <= 0 || hello.rank >= meeting_.num_ranks)
      return fmt::format("two processes say that they are rank {}", hello.rank);
    return {};
  }

  [[nodiscard]] std::string describe_missing(std::int32_t port) const {
    std::vector<std::int32_t> ranks;
    for (std::int32_t rank = 1; rank < meeting_.num_ranks; ++rank)
      if (!meeting_.connections[static_cast<std::size_t>(rank)].is_open()) ranks.push_back(rank);
    return fmt::format("rank 0 waited {:.1f} s at port {} for ranks {}", seconds(limit_), port, fmt::join(ranks, ", "));
  }

  Meeting& meeting_;
  milliseconds limit_;
  Deadline deadline_;
  std::int32_t missing_ = meeting_.num_ranks - 1;
};

/// Another rank's side. The host may have been an earlier transport's, about to go: then the connection breaks, and
/// the next try finds the right one.
void visit(Meeting& meeting, const std::string& address, std::int32_t port, milliseconds limit) {
  const Deadline deadline = std::chrono::steady_clock::now() + limit;
  const Hello hello{.rank = meeting.rank, .num_ranks = meeting.num_ranks, .port = port_of(meeting.listener)};
  const std::string_view bytes(reinterpret_cast<const char*>(&hello), sizeof(hello));
  while (true) {
    auto socket = connect_to(address, port, deadline);
    if (!socket)
      throw TransportError(
          fmt::format("rank {} waited {:.1f} s for rank 0 at {}:{}", meeting.rank, seconds(limit), address, port));
    if (!write_all(*socket, bytes, deadline)) continue;
    const auto answer = read_answer(*socket, deadline);
    if (!answer) continue;
    Reader reader(*answer);
    if (const std::string refusal = reader.text(); !refusal.empty()) throw InvalidArgument(refusal);
    for (Endpoint& endpoint : meeting.endpoints) {
      endpoint.host = reader.text();
      endpoint.port = reader.value<std::int32_t>();
      if (endpoint.host.empty()) endpoint.host = address;  // on rank 0's host
    }
    meeting.connections.front() = std::move(*socket);
    return;
  }
}

}  // namespace

Meeting meet(std::int32_t rank, std::int32_t num_ranks, const std::string& address, std::int32_t port,
             milliseconds time_limit) {
  Meeting meeting{.rank = rank, .num_ranks = num_ranks};
  meeting.connections.resize(static_cast<std::size_t>(num_ranks));
  meeting.endpoints.resize(static_cast<std::size_t>(num_ranks));
  if (num_ranks == 1) return meeting;
  if (rank == 0) {
    Host(meeting, time_limit).receive_all(port);
  } else {
    meeting.listener = listen_on(0);
    visit(meeting, address, port, time_limit);
  }
  return meeting;
}

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/socket.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace marble::nccl {
namespace {

using std::chrono::milliseconds;

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  constexpr decltype(left) kMost = 1'000'000;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, kMost));
}

/// True when `events` (or an error, which the next call reports) came before the deadline.
bool await(const Socket& socket, short events, Deadline deadline) {
  pollfd entry{socket.get(), events, 0};
  while (true) {
    const int ready = poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return false;
  }
}

/// Small messages leave at once, and children of this process do not hold its connections open.
Socket adopt(int descriptor) {
  Socket socket(descriptor);
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  return socket;
}

std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) throw TransportError(fmt::format("host '{}' has no address: {}", host, gai_strerror(code)));
  return {found, &freeaddrinfo};
}

/// One try; none when refused or unreachable.
std::optional<Socket> try_connect(const addrinfo& address, Deadline deadline) {
  const int descriptor = ::socket(address.ai_family, address.ai_socktype, address.ai_protocol);
  if (descriptor < 0) return std::nullopt;
  Socket socket = adopt(descriptor);
  if (connect(descriptor, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS || !await(socket, POLLOUT, deadline)) return std::nullopt;
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return std::nullopt;
  }
  return socket;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket listen_on(int port) {
  const int descriptor = ::socket(AF_INET6, SOCK_STREAM, 0);
  const bool has_ipv6 = descriptor >= 0;
  Socket socket = adopt(has_ipv6 ? descriptor : ::socket(AF_INET, SOCK_STREAM, 0));
  const int on = 1, off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (has_ipv6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  sockaddr_storage address{};
  socklen_t size = sizeof(sockaddr_in6);
  if (has_ipv6) {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address);
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(static_cast<std::uint16_t>(port));
    ipv6.sin6_addr = in6addr_any;
  } else {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(static_cast<std::uint16_t>(port));
    size = sizeof(sockaddr_in);
  }
  constexpr int kBacklog = 1'024;
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(socket.get(), kBacklog) != 0)
    throw TransportError(fmt::format("cannot listen on port {}: {}", port, std::strerror(errno)));
  return socket;
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::optional<Socket> accept_from(const Socket& listener, Deadline deadline) {
  while (await(listener, POLLIN, deadline)) {
    const int descriptor = accept(listener.get(), nullptr, nullptr);
    if (descriptor >= 0) return adopt(descriptor);
  }
  return std::nullopt;
}

std::optional<Socket> connect_to(const std::string& host, int port, Deadline deadline) {
  constexpr milliseconds kPause{20};
  const auto addresses = resolve(host, port);
  while (std::chrono::steady_clock::now() < deadline) {
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next)
      if (auto socket = try_connect(*address, deadline)) return socket;
    std::this_thread::sleep_for(kPause);
  }
  return std::nullopt;
}

bool write_all(const Socket& socket, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t done = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (done > 0)
      bytes.remove_prefix(static_cast<std::size_t>(done));
    else if ((errno != EAGAIN && errno != EINTR) || !await(socket, POLLOUT, deadline))
      return false;
  }
  return true;
}

bool read_all(const Socket& socket, char* bytes, std::size_t count, Deadline deadline) {
  while (count > 0) {
    if (!await(socket, POLLIN, deadline)) return false;
    const ssize_t done = recv(socket.get(), bytes, count, 0);
    if (done == 0) return false;
    if (done < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (done < 0) continue;
    bytes += done;
    count -= static_cast<std::size_t>(done);
  }
  return true;
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6&>(address).sin6_addr, text, sizeof(text));
  else
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in&>(address).sin_addr, text, sizeof(text));
  std::string name = text;
  constexpr std::string_view kMapped = "::ffff:";
  if (name.starts_with(kMapped)) name.erase(0, kMapped.size());
  return name == "::1" || name.starts_with("127.") ? std::string() : name;
}

}  // namespace marble::nccl

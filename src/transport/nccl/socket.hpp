// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/staged.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace marble::nccl {

/// A file descriptor that closes itself. Sockets do not block; the functions below wait until a deadline.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

/// Listens on all addresses of this host. Port 0: any. Throws TransportError when the port is taken.
[[nodiscard]] Socket listen_on(int port);
[[nodiscard]] int port_of(const Socket& socket);

/// The next connection, or none until the deadline.
[[nodiscard]] std::optional<Socket> accept_from(const Socket& listener, Deadline deadline);
/// Tries again while nobody listens; none at the deadline. Throws TransportError when the host has no address.
[[nodiscard]] std::optional<Socket> connect_to(const std::string& host, int port, Deadline deadline);

/// False when the other side is gone or the deadline has come.
[[nodiscard]] bool write_all(const Socket& socket, std::string_view bytes, Deadline deadline);
[[nodiscard]] bool read_all(const Socket& socket, char* bytes, std::size_t count, Deadline deadline);

/// Numeric address of the other side; empty when it is this host's loopback.
[[nodiscard]] std::string peer_address(const Socket& socket);

}  // namespace marble::nccl

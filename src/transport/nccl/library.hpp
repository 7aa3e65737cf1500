// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The seam to a library that moves bytes between devices: by sends that meet receives, or by puts into windows, memory
// that all ranks have opened to each other.

#include "transport/nccl/device.hpp"
#include "transport/nccl/failure.hpp"
#include "transport/staged.hpp"

#include "marble/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace marble::nccl {

class Window {
 public:
  virtual ~Window() = default;
  /// This rank's part of it.
  [[nodiscard]] virtual std::byte* data() const = 0;
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  [[nodiscard]] bool contains(const std::byte* begin, std::int64_t count) const {
    return begin >= data() && begin + count <= data() + bytes();
  }
};

/// Writes `bytes` at `source`, which lies in a window, into the peer's part of `target`.
struct Put {
  const std::byte* source = nullptr;
  std::int64_t bytes = 0;
  std::int32_t peer = 0;
  const Window* target = nullptr;
  std::int64_t offset = 0;
};

/// What is asked of one, on whichever queue, is done in the order of asking. Its calls come from one thread at a time;
/// they throw BackendError when the library refuses.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // One group, asked for on the queue. False when the transport has failed meanwhile.
  [[nodiscard]] virtual bool send_recv(Queue queue, std::span<const Message> sends, std::span<const Message> recvs) = 0;
  /// Those to one peer arrive in their order.
  [[nodiscard]] virtual bool put(Queue queue, std::span<const Put> puts) = 0;

  /// Memory for a window of this many bytes, not yet opened. It lives no longer than the communicator.
  [[nodiscard]] virtual std::unique_ptr<Window> allocate_window(std::int64_t bytes) = 0;
  /// Collective; all ranks bring as many bytes.
  virtual void open(Window& window, Deadline deadline) = 0;

  /// Ends what is under way, after a failure; nothing else may be asked of it then.
  virtual void abort() noexcept = 0;
};

/// What a communicator is for.
enum class Traffic : std::int32_t { send_recv, put };

class Library {
 public:
  virtual ~Library() = default;
  /// Name, version and where it was found.
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Why it has no puts; empty: it has.
  [[nodiscard]] virtual std::string why_no_put() const = 0;
  /// What rank 0 makes and all ranks join by.
  [[nodiscard]] virtual std::string make_id() = 0;
  /// Collective. Its calls end when `failure` happens. Throws BackendError at the deadline.
  [[nodiscard]] virtual std::unique_ptr<Communicator> join(Traffic traffic, const std::string& id, std::int32_t rank,
                                                           std::int32_t num_ranks, const Failure& failure,
                                                           Deadline deadline) = 0;
};

}  // namespace marble::nccl

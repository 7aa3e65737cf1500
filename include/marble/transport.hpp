// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How ranks move bytes. One primitive: an exchange, a grouped set of messages of any sizes, begun and waited for.
// Every wait has a limit; a TransportError names rank, peer and what was awaited, and poisons the transport: discard it
// on every rank. Calls on one Transport object come from one thread.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace marble {

/// `bytes` of memory to send to, or receive from, `peer`. Messages between two ranks pair up in the order given; sizes
/// must agree, else TransportError. Zero-byte messages are legal. peer may be this rank.
struct Message {
  std::int32_t peer = 0;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::int32_t rank() const = 0;
  [[nodiscard]] virtual std::int32_t num_ranks() const = 0;

  /// Starts an exchange and returns at once with its ticket. Sent memory must stay unchanged, and received memory
  /// unread, until `wait` returns. `label` names the exchange in errors ("layer 0 forward step 2 fetch").
  virtual std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs,
                             std::string_view label) = 0;
  /// Returns when the exchange has completed on this rank. Tickets may be waited for in any order.
  virtual void wait(std::int64_t ticket) = 0;

  /// Throws InvalidArgument on every rank, naming rank and value, unless all ranks bring the same value. Host-side;
  /// used when a plan is bound.
  virtual void agree(std::uint64_t value, std::string_view what) = 0;

  [[nodiscard]] virtual std::int64_t bytes_received() const = 0;
};

struct TransportOptions {
  std::chrono::milliseconds time_limit{60'000};
};

/// Ranks as threads of one process: runs fn(transport) for each rank on a thread of its own and returns when all have
/// returned. Receivers get copies, never the sender's memory. When a rank throws, the others' waits end with
/// TransportError, and the first exception is rethrown here.
void run_local_ranks(std::int32_t num_ranks, const TransportOptions& options,
                     const std::function<void(Transport&)>& fn);

/// True when this library was built with MPI.
[[nodiscard]] bool mpi_available();
/// Over MPI_COMM_WORLD; initialises MPI when nobody has, and then finalises it at process exit. Throws InvalidArgument
/// when MPI is not available.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options = {});

/// A fault to inject, for tests.
struct Fault {
  std::chrono::milliseconds delay{0};     // every exchange completes this much after its beginning
  std::int64_t stall_at_exchange = -1;    // this exchange never completes (the waiting rank reaches its limit)
  std::int64_t corrupt_at_exchange = -1;  // the first received byte of this exchange is flipped
  std::int64_t fail_at_exchange = -1;     // begin throws TransportError
};

/// Wraps `inner`, which must outlive it.
[[nodiscard]] std::unique_ptr<Transport> make_faulty_transport(Transport& inner, const Fault& fault,
                                                               const TransportOptions& options);

}  // namespace marble

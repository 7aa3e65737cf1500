// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How ranks move bytes. One primitive: an exchange, a grouped set of messages of any sizes, begun and waited for.
// Every wait has a limit; a TransportError names rank, peer and what was awaited, and poisons the transport: every
// later call on it throws again, so discard it on every rank. Calls on one Transport object come from one thread at a
// time.
//
// Order between two ranks: both begin the exchanges that they share in the same order, and list the messages of one
// exchange between them in the same order. Ranks that share no message of an exchange need not begin it.
//
// Order with a backend's work is program order: a message leaves with what the work issued before `begin` wrote, and
// work issued after `wait` sees the received data. Transports that know the device's stream (nccl) put `begin` and
// `wait` into it and return at once; the others call MemoryAccess, which blocks.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
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

/// How a transport that moves host bytes reads and writes the memory that messages name, which may be a device's. Both
/// copy `bytes` bytes and return when the copy is done, after all work issued before the call.
struct MemoryAccess {
  using Copy = std::function<void(void* target, const void* source, std::int64_t bytes)>;
  static void copy_host(void* target, const void* source, std::int64_t bytes) {
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
  Copy read = copy_host;   // message memory to host memory
  Copy write = copy_host;  // host memory to message memory
};

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// One line for logs: how bytes travel, and why in this way.
  [[nodiscard]] virtual std::string describe() const { return std::string(name()); }
  [[nodiscard]] virtual std::int32_t rank() const = 0;
  [[nodiscard]] virtual std::int32_t num_ranks() const = 0;

  /// Replaces the options' memory access; for ranks whose memory is not the host's. No exchange may be in flight.
  virtual void set_memory_access(MemoryAccess memory) = 0;

  /// Starts an exchange and returns with its ticket, waiting for no other rank. Sent memory must stay unchanged, and
  /// received memory unread and unwritten, until `wait` returns. `label` names the exchange in errors ("layer 0 forward
  /// step 2 fetch"). Throws InvalidArgument on a peer out of range, a negative size or null memory; nothing was
  /// started.
  virtual std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs,
                             std::string_view label) = 0;
  /// Returns when the exchange has completed on this rank. Tickets may be waited for in any order, each once.
  virtual void wait(std::int64_t ticket) = 0;

  /// Throws InvalidArgument on every rank, naming ranks and values, unless all ranks bring the same value. Host-side
  /// and collective: all ranks call it at the same place among their exchanges. Used when a plan is bound.
  virtual void agree(std::uint64_t value, std::string_view what) = 0;

  /// From other ranks, in exchanges waited for.
  [[nodiscard]] virtual std::int64_t bytes_received() const = 0;

  /// Throws TransportError if this transport has failed. Where `wait` is the stream's, results count only once the
  /// stream has been synchronised and this call has returned: after a failure the stream runs on without the data.
  virtual void check() {}
  /// Poisons this transport, and tells the ranks that it can tell: what they wait for ends, and every later call throws
  /// TransportError with `reason`. For a rank that takes no part in what the others have begun.
  virtual void fail([[maybe_unused]] std::string_view reason) {}

  /// True when messages arrive faster, or only, in memory of the transport's own: then receive into `reserved`.
  [[nodiscard]] virtual bool reserves() const { return false; }
  /// Collective, host-side, no exchange in flight: afterwards `reserved` holds at least the largest `bytes` that a rank
  /// asked for. Growing waits for the device, moves the memory and loses what it held.
  virtual void reserve([[maybe_unused]] std::int64_t bytes) {}
  /// Memory shared by all users of this transport, in stream order; valid until the next `reserve`. Null: none.
  [[nodiscard]] virtual void* reserved() const { return nullptr; }
};

struct TransportOptions {
  std::chrono::milliseconds time_limit{60'000};  // of one wait or agreement
  MemoryAccess memory = {};
};

/// Ranks as threads of one process: runs fn(transport) for each rank on a thread of its own and returns when all have
/// returned. Receivers get copies, never the sender's memory. When a rank throws, the others' waits end at once with
/// TransportError, and the first exception is rethrown here. A rank that returns ends the waits for what it never sent.
void run_local_ranks(std::int32_t num_ranks, const TransportOptions& options,
                     const std::function<void(Transport&)>& fn);

/// True when this library was built with MPI.
[[nodiscard]] bool mpi_available();
/// Over a duplicate of MPI_COMM_WORLD, made collectively. Initialises MPI when nobody has, and then finalises it at
/// process exit, or ends all ranks with MPI_Abort when a transport had failed, since MPI_Finalize would wait for dead
/// ranks. Throws InvalidArgument when MPI is not available.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options = {});

/// How the nccl transport moves bytes between GPUs, best first. automatic: the first that all ranks can use.
enum class Rung : std::int32_t {
  automatic,
  copy,      // copy engines write into memory mapped by peers; one host, no multiprocessor used, no NCCL needed
  put,       // NCCL 2.29.2 or newer puts into windows; no multiprocessor used for sends from reserved memory
  sendrecv,  // NCCL's grouped send and receive
};
[[nodiscard]] std::string_view to_string(Rung rung);

struct PossibleRung {
  Rung rung = Rung::automatic;
  std::string needs;  // of the machines and of NCCL
};
/// The rungs that the number of nodes allows, in the order in which they are tried. All ranks take the same, the first
/// whose needs are met between all of them: only ranks that have met know which (Transport::describe).
[[nodiscard]] std::vector<PossibleRung> possible_rungs(std::int32_t num_ranks, std::int32_t ranks_per_node);

struct NcclOptions {
  // Negative, empty or 0: from the environment, of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) or
  // of Open MPI's mpirun. The port is rank 0's for this transport alone: MARBLE_PORT, else MASTER_PORT + 1.
  std::int32_t rank = -1;
  std::int32_t num_ranks = -1;
  std::int32_t device = -1;  // of this rank
  std::string address;
  std::int32_t port = 0;

  void* stream = nullptr;         // cudaStream_t of the backend, which outlives the transport; null: the default stream
  Rung rung = Rung::automatic;    // automatic: MARBLE_TRANSPORT_RUNG, if set
  std::string nccl_library = {};  // empty: MARBLE_NCCL_LIBRARY, else the one that is loaded, else libnccl.so.2
  std::chrono::milliseconds time_limit{60'000};  // of one wait, and of each collective call
  /// For receives that are not in reserved memory; over puts also for such sends, with as many bytes on all ranks.
  std::int64_t staging_bytes = std::int64_t{64} << 20;
};

/// Fills in what the options leave open; so a caller knows its device before it makes anything. Throws InvalidArgument,
/// naming the variable that is missing or impossible.
[[nodiscard]] NcclOptions resolve_nccl_options(const NcclOptions& options);

/// True when this library was built with CUDA.
[[nodiscard]] bool nccl_available();
/// Between GPUs, one process for each; collective. Messages name device memory, or host memory on both sides, which
/// travels through sockets and makes `wait` block; set_memory_access changes nothing. A watchdog ends waits, the
/// stream's too, at the time limit, when a rank dies and when sizes differ; every call throws from then on (`check`).
/// Throws InvalidArgument on impossible options, TransportError when not all ranks come.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(const NcclOptions& options = {});

/// Faults to inject into one rank's exchanges, counted from 0 in the order of their beginning; for tests.
struct Fault {
  std::chrono::milliseconds delay{0};   // every exchange completes this much after its beginning, or later
  std::int64_t stall_at_exchange = -1;  // this exchange never starts: its waits, here and at its peers, reach the limit
  std::int64_t corrupt_at_exchange = -1;  // the first received byte of this exchange is inverted
  std::int64_t fail_at_exchange = -1;     // begin throws TransportError
};

/// Wraps `inner`, which must outlive it. `options` are those of `inner`; set_memory_access reaches both.
[[nodiscard]] std::unique_ptr<Transport> make_faulty_transport(Transport& inner, const Fault& fault,
                                                               const TransportOptions& options);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What moves the device parcels of exchanges, on side queues, and what the compute queue has to do with that.

#include "transport/nccl/exchange.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace marble::nccl {

class Courier {
 public:
  virtual ~Courier() = default;

  /// How many side queues it uses, the first ones.
  [[nodiscard]] virtual std::int32_t num_side_queues() const = 0;
  /// Pairs (one that waits, one that must be able to work meanwhile).
  [[nodiscard]] virtual std::vector<std::pair<Queue, Queue>> independent_queues() const = 0;
  /// True when receives arrive in the region of this rank, memory that peers write.
  [[nodiscard]] virtual bool has_region() const = 0;
  /// True when senders are to announce that sizes agree.
  [[nodiscard]] virtual bool wants_announcements() const = 0;

  // The user's thread calls these, at `begin` and `wait`.

  /// From here on in the compute queue the exchange's receives may be written.
  virtual void enqueue_credits(const Exchange& exchange) = 0;
  /// True when the progress thread has something to ask for, which must be done before the compute queue waits for it.
  [[nodiscard]] virtual bool asks_for(const Exchange& exchange) const = 0;
  /// Lets the compute queue wait for the whole exchange, with the last of `ops`, or after having enqueued those.
  virtual void enqueue_wait(const Exchange& exchange, std::vector<WordOp>& ops) = 0;

  // The progress thread calls these.

  /// One look at the exchanges with something left to start, oldest first.
  virtual void begin_round() = 0;
  /// Asks the queues for what is ready. Returns the peer of the first parcel that is not, or kAll.
  [[nodiscard]] virtual std::int32_t advance(Exchange& exchange) = 0;
  static constexpr std::int32_t kAll = -1;
  /// False when it is sure that parcel `sequence` from `peer` is not here yet.
  [[nodiscard]] virtual bool may_have_arrived(std::int32_t peer, Word sequence) const = 0;
  /// Gives up what is under way, after a failure.
  virtual void abort() noexcept = 0;

  // Any thread calls these after a failure, again and again: they end the waits of the compute queue, and of side
  // queues, which then write to peers without their credit.
  virtual void release_compute() noexcept = 0;
  virtual void release_side() noexcept = 0;
};

[[nodiscard]] inline bool is_device(const Parcel& parcel) {
  return parcel.place == Place::device;
}

[[nodiscard]] inline bool has_device_sends(const Exchange& exchange) {
  return std::any_of(exchange.sends.begin(), exchange.sends.end(), is_device);
}

[[nodiscard]] inline bool has_device_parcels(const Exchange& exchange) {
  return has_device_sends(exchange) || std::any_of(exchange.recvs.begin(), exchange.recvs.end(), is_device);
}

/// For couriers that start exchanges whole: the peer that has not begun this one; kAll: all have, and sizes agree.
[[nodiscard]] inline std::int32_t late_receiver(const Exchange& exchange) {
  for (const Outgoing& parcel : exchange.sends)
    if (is_device(parcel) && !parcel.post) return parcel.peer;
  return Courier::kAll;
}

[[nodiscard]] inline std::int32_t late_sender(const Exchange& exchange) {
  for (const Incoming& parcel : exchange.recvs)
    if (is_device(parcel) && !parcel.is_announced) return parcel.peer;
  return Courier::kAll;
}

}  // namespace marble::nccl

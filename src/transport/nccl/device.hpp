// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The device operations that the transport needs, so that everything above them runs, and is tested, on a host. Queues
// of work: the backend's compute stream, and side streams of the transport. Those of different ranks meet in words:
// 64-bit integers in registered host memory, or the device's own, that streams write and wait for, and that only grow.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace marble::nccl {

using Word = std::uint64_t;

/// Releases a wait for any value.
inline constexpr Word kReleased = Word{1} << 62;

using Queue = std::int32_t;
inline constexpr Queue kCompute = 0;
[[nodiscard]] constexpr Queue side_queue(std::int32_t index) {
  return 1 + index;
}

struct WordOp {
  enum class Kind { write, wait };  // wait: until *word >= value
  Kind kind;
  Word* word;
  Word value;
};

/// Names memory to another process.
using MemoryHandle = std::array<std::byte, 64>;

/// A point in a queue's work.
class Mark {
 public:
  virtual ~Mark() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  /// Makes the device the calling thread's; every thread does so before anything else.
  virtual void select() = 0;

  [[nodiscard]] virtual bool is_device_memory(const void* data) const = 0;
  /// True when these bytes belong to one allocation; a copy must not cross into another that begins where it ends.
  [[nodiscard]] virtual bool is_one_allocation(const void* data, std::int64_t bytes) const = 0;
  /// True while the compute stream is captured into a graph.
  [[nodiscard]] virtual bool is_capturing() const = 0;

  // Asked for in order on a queue, and returning at once. A write becomes visible after all that its queue did before.
  virtual void enqueue(Queue queue, std::span<const WordOp> ops) = 0;
  virtual void copy(Queue queue, void* target, const void* source, std::int64_t bytes) = 0;
  /// After all that the queue was asked for so far.
  [[nodiscard]] virtual std::unique_ptr<Mark> mark(Queue queue) = 0;
  /// What the queue is asked for from here on comes after the mark.
  virtual void follow(Queue queue, const Mark& mark) = 0;

  /// True when all is done that the queue was asked for; not to be asked of a stream that is captured.
  [[nodiscard]] virtual bool is_idle(Queue queue) = 0;

  // Of side queues, before their first use: makes them, and changes one for another.
  virtual void make_side_queues(std::int32_t count) = 0;
  virtual void renew(Queue queue) = 0;

  // These may wait for all work of the device.
  virtual void synchronize(Queue queue) = 0;
  [[nodiscard]] virtual void* allocate(std::int64_t bytes) = 0;
  virtual void free(void* data) noexcept = 0;
  [[nodiscard]] virtual MemoryHandle export_memory(void* data) = 0;
  [[nodiscard]] virtual void* open_memory(const MemoryHandle& handle) = 0;
  virtual void close_memory(void* data) noexcept = 0;
  /// Lets queues use words in this host memory, whole pages.
  virtual void register_words(void* data, std::int64_t bytes) = 0;
  virtual void unregister_words(void* data) noexcept = 0;
};

}  // namespace marble::nccl

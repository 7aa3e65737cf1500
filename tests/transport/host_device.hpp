// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A "device" on the host: queues are threads, device memory is the process's, and ranks as threads see each other's.

#include "transport/nccl/device.hpp"
#include "transport/nccl/words.hpp"

#include "marble/error.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace marble::nccl {

/// Does what it is given in order, on a thread of its own, or at once on the caller's.
class HostQueue {
 public:
  HostQueue() : thread_([this] { run(); }) {}
  ~HostQueue() {
    push({});
    thread_.join();
  }
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  /// Nothing: ends the thread.
  void push(std::function<void()> work) {
    if (at_once && work) return work();
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
    ++pending_;
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pending_ == 0; });
  }

  [[nodiscard]] bool is_idle() {
    const std::scoped_lock lock(mutex_);
    return pending_ == 0;
  }

  bool at_once = false;

 private:
  void run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !work_.empty(); });
        work = std::move(work_.front());
        work_.pop_front();
      }
      if (!work) return;
      work();
      const std::scoped_lock lock(mutex_);
      --pending_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  int pending_ = 0;
  std::thread thread_;
};

struct HostMark final : Mark {
  std::shared_ptr<std::atomic<bool>> reached = std::make_shared<std::atomic<bool>>(false);
};

/// As a device does, unseen by the thread sanitizer. What orders copies is words, which ranks as threads see at
/// different addresses of one shared memory: it would take them for different words, and every copy for a race.
[[gnu::no_sanitize("thread"), gnu::noinline]] inline void copy_unseen(std::byte* target, const std::byte* source,
                                                                      std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    target[i] = source[i];
    asm volatile("" ::: "memory");  // keeps this a loop; memcpy is seen
  }
}

class HostDevice final : public Device {
 public:
  enum class Memory { device, host };  // what every pointer is taken for

  explicit HostDevice(Memory taken_for = Memory::device) : memory(taken_for) {}

  void select() override {}
  [[nodiscard]] bool is_device_memory(const void*) const override { return memory == Memory::device; }
  [[nodiscard]] bool is_one_allocation(const void* data, std::int64_t bytes) const override {
    const auto* const begin = static_cast<const std::byte*>(data);
    return begin >= ends_at || begin + bytes <= ends_at;
  }
  [[nodiscard]] bool is_capturing() const override { return captures; }
  void enqueue(Queue queue, std::span<const WordOp> ops) override {
    if (refuses && queue == kCompute) throw BackendError("device lost");
    queue_of(queue).push([list = std::vector(ops.begin(), ops.end())] {
      for (const WordOp& op : list)
        if (op.kind == WordOp::Kind::write)
          store(op.word, op.value);
        else
          while (load(op.word) < op.value) std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
  }
  void copy(Queue queue, void* target, const void* source, std::int64_t bytes) override {
    if (queue != kCompute) ++num_copies;
    const auto work = [=] {
      copy_unseen(static_cast<std::byte*>(target), static_cast<const std::byte*>(source), bytes);
    };
    queue_of(queue).push(work);
  }
  /// A copy whose target may be a word that others wait for.
  void put(Queue queue, std::byte* target, const std::byte* source, std::int64_t bytes) {
    const auto is_aligned = [](const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data) % 8 == 0; };
    if (bytes != sizeof(Word) || !is_aligned(target) || !is_aligned(source)) return copy(queue, target, source, bytes);
    queue_of(queue).push([=] { store(reinterpret_cast<Word*>(target), load(reinterpret_cast<const Word*>(source))); });
  }
  [[nodiscard]] std::unique_ptr<Mark> mark(Queue queue) override {
    auto mark = std::make_unique<HostMark>();
    queue_of(queue).push([reached = mark->reached] { *reached = true; });
    return mark;
  }
  void follow(Queue queue, const Mark& mark) override {
    queue_of(queue).push([reached = dynamic_cast<const HostMark&>(mark).reached] {
      while (!*reached) std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
  }
  void make_side_queues(std::int32_t count) override {
    sides_.clear();
    for (std::int32_t i = 0; i < count; ++i) sides_.push_back(std::make_unique<HostQueue>());
  }
  void renew(Queue) override { ++num_renewed; }
  [[nodiscard]] bool is_idle(Queue queue) override { return queue_of(queue).is_idle(); }
  void synchronize(Queue queue) override { queue_of(queue).synchronize(); }
  [[nodiscard]] void* allocate(std::int64_t bytes) override { return new std::byte[static_cast<std::size_t>(bytes)]; }
  void free(void* data) noexcept override { delete[] static_cast<std::byte*>(data); }
  [[nodiscard]] MemoryHandle export_memory(void* data) override {
    MemoryHandle handle{};
    std::memcpy(handle.data(), &data, sizeof(data));
    return handle;
  }
  [[nodiscard]] void* open_memory(const MemoryHandle& handle) override {
    void* data = nullptr;
    std::memcpy(&data, handle.data(), sizeof(data));
    return data;
  }
  void close_memory(void*) noexcept override {}
  void register_words(void*, std::int64_t) override {}
  void unregister_words(void*) noexcept override {
    if (!compute_.is_idle()) ++num_given_back_early;
  }

  /// For a backend that computes on the caller's thread: its "stream" is what that thread does.
  void compute_at_once() { compute_.at_once = true; }
  void pause(Queue queue, std::chrono::milliseconds time) {
    queue_of(queue).push([=] { std::this_thread::sleep_for(time); });
  }

  Memory memory;
  bool captures = false;
  bool refuses = false;                // whatever its compute queue is asked for
  const std::byte* ends_at = nullptr;  // an allocation ends here, and another begins
  bool blocks_side = false;            // its queues share one, as streams on one hardware queue do
  int num_renewed = 0;                 // side queues
  std::atomic<int> num_copies = 0;     // asked for on side queues
  /// Of all devices: words that were given back while a compute queue might still touch them.
  inline static std::atomic<int> num_given_back_early = 0;

 private:
  HostQueue& queue_of(Queue queue) {
    return queue == kCompute || blocks_side ? compute_ : *sides_[static_cast<std::size_t>(queue - 1)];
  }

  HostQueue compute_;
  std::vector<std::unique_ptr<HostQueue>> sides_;
};

}  // namespace marble::nccl

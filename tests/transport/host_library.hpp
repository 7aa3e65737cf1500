// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A library with puts between ranks as threads: windows are memory that all of them see. As NCCL's, a communicator does
// all it is asked for in the order of asking, whichever the queue.

#include "transport/host_device.hpp"
#include "transport/nccl/library.hpp"

#include "marble/error.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace marble::nccl {

/// As a GPU's memory that another process has mapped, a window lives until nobody has it.
using HostMemory = std::shared_ptr<std::byte[]>;

class HostWindow final : public Window {
 public:
  explicit HostWindow(std::int64_t bytes)
      : memory(std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes))), bytes_(bytes) {}

  [[nodiscard]] std::byte* data() const override { return memory.get(); }
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

  HostMemory memory;
  std::vector<HostMemory> parts;  // by rank, once opened

 private:
  std::int64_t bytes_;
};

/// Where the ranks of a communicator meet.
class HostMeeting {
 public:
  explicit HostMeeting(std::int32_t num_ranks) : num_ranks_(static_cast<std::size_t>(num_ranks)) {}

  /// Every rank's value, by rank.
  std::vector<HostMemory> gather(std::int32_t rank, const HostMemory& value, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const std::size_t round = ++rounds_[rank];
    auto& values = values_[round];
    values[rank] = value;
    changed_.notify_all();
    if (!changed_.wait_until(lock, deadline, [&] { return values.size() == num_ranks_; }))
      throw BackendError("not all ranks have come");
    std::vector<HostMemory> all;
    for (const auto& [from, one] : values) all.push_back(one);
    return all;
  }

 private:
  std::size_t num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int32_t, std::size_t> rounds_;
  std::map<std::size_t, std::map<std::int32_t, HostMemory>> values_;
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(HostDevice& device, std::shared_ptr<HostMeeting> meeting, std::int32_t rank)
      : device_(device), meeting_(std::move(meeting)), rank_(rank) {}

  [[nodiscard]] bool send_recv(Queue, std::span<const Message>, std::span<const Message>) override {
    throw BackendError("this library only puts");
  }

  [[nodiscard]] bool put(Queue queue, std::span<const Put> puts) override {
    if (last_) device_.follow(queue, *last_);
    for (const Put& put : puts) {
      const auto& window = dynamic_cast<const HostWindow&>(*put.target);
      std::byte* const part = window.parts.at(static_cast<std::size_t>(put.peer)).get();
      device_.put(queue, part + put.offset, put.source, put.bytes);
    }
    last_ = device_.mark(queue);
    return true;
  }

  [[nodiscard]] std::unique_ptr<Window> allocate_window(std::int64_t bytes) override {
    return std::make_unique<HostWindow>(bytes);
  }
  void open(Window& window, Deadline deadline) override {
    auto& own = dynamic_cast<HostWindow&>(window);
    own.parts = meeting_->gather(rank_, own.memory, deadline);
  }
  void abort() noexcept override {}

 private:
  HostDevice& device_;
  std::shared_ptr<HostMeeting> meeting_;
  std::int32_t rank_;
  std::unique_ptr<Mark> last_;
};

class HostLibrary final : public Library {
 public:
  explicit HostLibrary(HostDevice& device) : device_(device) {}

  [[nodiscard]] std::string describe() const override { return "a library of this host"; }
  [[nodiscard]] std::string why_no_put() const override { return {}; }
  [[nodiscard]] std::string make_id() override {
    static std::atomic<int> next{0};
    return std::to_string(++next);
  }
  [[nodiscard]] std::unique_ptr<Communicator> join(Traffic, const std::string& id, std::int32_t rank,
                                                   std::int32_t num_ranks, const Failure&, Deadline) override {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<HostMeeting>> meetings;
    const std::scoped_lock lock(mutex);
    auto meeting = meetings[id].lock();
    if (!meeting) meetings[id] = meeting = std::make_shared<HostMeeting>(num_ranks);
    return std::make_unique<HostCommunicator>(device_, meeting, rank);
  }

 private:
  HostDevice& device_;
};

}  // namespace marble::nccl

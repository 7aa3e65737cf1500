// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The words of ranks. For each rank and peer: how many parcels from the peer have arrived, how many the rank is ready
// to receive (credits), and how many to the peer have been sent; and for each rank where its compute stream is. Data
// and credits never share a word, so that neither can be taken for the other.

#include "transport/nccl/device.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace marble::nccl {

[[nodiscard]] inline Word load(const Word* word) {
  return std::atomic_ref<Word>(*const_cast<Word*>(word)).load(std::memory_order_acquire);
}
inline void store(Word* word, Word value) {
  std::atomic_ref<Word>(*word).store(value, std::memory_order_release);
}

/// Pages of host memory: this process's own, or shared with others of this host by name.
class WordMemory {
 public:
  static std::unique_ptr<WordMemory> own(std::int64_t bytes);
  /// A new one, with a name that nobody else uses.
  static std::unique_ptr<WordMemory> create_shared(std::int64_t bytes);
  static std::unique_ptr<WordMemory> open_shared(const std::string& name, std::int64_t bytes);
  WordMemory(const WordMemory&) = delete;
  WordMemory& operator=(const WordMemory&) = delete;
  ~WordMemory();

  [[nodiscard]] Word* data() const { return static_cast<Word*>(data_); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Nobody else will open it; it lives on while mapped.
  void forget_name();

 private:
  WordMemory(void* data, std::int64_t bytes, std::string name, bool owns_name)
      : data_(data), bytes_(bytes), name_(std::move(name)), owns_name_(owns_name) {}
  static std::unique_ptr<WordMemory> map(int file, std::int64_t bytes, std::string name, bool owns_name);

  void* data_;
  std::int64_t bytes_;
  std::string name_;
  bool owns_name_;
};

/// Places in the memory. With rows for all ranks, peers write each other's; else there is this rank's row alone.
class Words {
 public:
  Words() = default;
  Words(Word* data, std::int32_t rank, std::int32_t num_ranks, bool all_rows)
      : data_(data), rank_(rank), num_ranks_(num_ranks), all_rows_(all_rows) {}

  [[nodiscard]] static std::int64_t bytes(std::int32_t num_ranks, bool all_rows) {
    return stride(num_ranks) * (all_rows ? num_ranks : 1) * std::int64_t{sizeof(Word)};
  }

  // Of the parcels from `peer` to `rank`.
  [[nodiscard]] Word* arrived(std::int32_t rank, std::int32_t peer) const { return row(rank) + peer; }
  [[nodiscard]] Word* credit(std::int32_t rank, std::int32_t peer) const { return row(rank) + num_ranks_ + peer; }
  // Of this rank.
  [[nodiscard]] Word* arrived(std::int32_t peer) const { return arrived(rank_, peer); }
  [[nodiscard]] Word* credit(std::int32_t peer) const { return credit(rank_, peer); }
  [[nodiscard]] Word* sent(std::int32_t peer) const { return row(rank_) + 2 * num_ranks_ + peer; }
  [[nodiscard]] Word* wait_reached() const { return row(rank_) + 3 * num_ranks_; }  // waits of the compute stream
  [[nodiscard]] Word* wait_passed() const { return row(rank_) + 3 * num_ranks_ + 1; }
  [[nodiscard]] Word* unstaged() const { return row(rank_) + 3 * num_ranks_ + 2; }  // waits whose staging is free

  // End every wait of this rank's compute stream, and of its side streams. To be repeated: whoever else writes a word
  // may write a smaller value later.
  void release_compute() const {
    for (std::int32_t peer = 0; peer < num_ranks_; ++peer) {
      store(arrived(peer), kReleased);
      store(sent(peer), kReleased);
    }
  }
  void release_side() const {
    if (!all_rows_) return;
    for (std::int32_t peer = 0; peer < num_ranks_; ++peer) store(credit(peer, rank_), kReleased);
  }

 private:
  [[nodiscard]] static std::int64_t stride(std::int32_t num_ranks) {
    constexpr std::int64_t kLine = 16;  // 128 bytes, so that ranks' rows share no cache line
    return (std::int64_t{3} * num_ranks + 3 + kLine - 1) / kLine * kLine;
  }
  [[nodiscard]] Word* row(std::int32_t rank) const { return data_ + (all_rows_ ? rank : 0) * stride(num_ranks_); }

  Word* data_ = nullptr;
  std::int32_t rank_ = 0;
  std::int32_t num_ranks_ = 0;
  bool all_rows_ = false;
};

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Carries out exchanges of a rank plan, one at a time: packs what is not dense, hands messages to the transport, copies
// what stays on this rank, and adds or unpacks what arrives, in the order listed. Each of the three is one call of the
// backend for all tensors and peers, but for sums into the same elements.

#include "marble/backend.hpp"
#include "marble/rank_plan.hpp"
#include "marble/tensor.hpp"
#include "marble/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace marble {

/// Staging that an exchange takes at most, whatever the strides of the caller's tensors. `reserves`: the transport
/// does.
[[nodiscard]] std::int64_t staging_bytes(const RankPlan& plan, DType dtype, std::int32_t exchange, bool reserves);

class Mover {
 public:
  /// `buffers` holds a view of every buffer of the plan that the exchanges name; `staging` is for staging_bytes().
  Mover(const RankPlan& plan, Backend& backend, Transport& transport, std::span<const TensorView> buffers,
        std::byte* staging)
      : plan_(plan), backend_(backend), transport_(transport), buffers_(buffers), staging_(staging) {}

  /// Starts exchange `exchange` (below 0: none) and returns at once. The one before must have been waited for.
  void begin(std::int32_t exchange, std::string_view label);

  /// Completes what was begun last; nothing to do when nothing is under way.
  void wait();

 private:
  /// A receive that leaves something to do when everything is there.
  struct Arrival {
    const Transfer* recv;
    TensorView source;
  };

  [[nodiscard]] TensorView view(const Transfer& transfer) const;
  std::byte* take_staging(std::int64_t bytes);
  void place_send(const Transfer& transfer);
  void place_recv(const Transfer& transfer);

  const RankPlan& plan_;
  Backend& backend_;
  Transport& transport_;
  std::span<const TensorView> buffers_;
  std::byte* staging_;
  std::int64_t staged_ = 0;  // bytes of staging in use

  bool is_under_way_ = false;
  std::vector<Copy> packs_;            // of what is sent
  std::vector<TensorView> own_sends_;  // to this rank itself
  std::size_t own_recvs_ = 0;          // receives from this rank itself so far
  std::vector<Copy> own_copies_;       // of them, made while the other messages travel
  std::vector<Arrival> arrivals_;
  std::vector<Message> send_messages_;  // to other ranks
  std::vector<Message> recv_messages_;
  std::optional<std::int64_t> ticket_;
};

}  // namespace marble

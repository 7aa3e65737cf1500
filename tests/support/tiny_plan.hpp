// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rank plans made by hand, too small to compute anything: they hold steps and transfers for tests of the executor.

#include "plan/rank_plan_parts.hpp"

#include "marble/rank_plan.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace marble::test {

inline constexpr std::int64_t kTinyRows = 8;
inline constexpr std::int64_t kTinyTokens = 6;  // of every rank; the other rows are pads
inline constexpr std::int32_t kTinyHeads = 2;
inline constexpr std::int32_t kTinyDim = 4;

inline constexpr std::int32_t index(Tensor tensor) {
  return static_cast<std::int32_t>(tensor);
}

/// Builds a rank plan step by step. Buffers are [kTinyRows, 1 key head] unless said otherwise.
class TinyPlan {
 public:
  TinyPlan(std::int32_t rank, std::int32_t num_ranks) {
    RankPlanHeader& header = parts.header;
    header.plan_digest = 7;
    header.rank = rank;
    header.num_ranks = num_ranks;
    header.heads = header.local_heads = kTinyHeads;
    header.kv_heads = header.local_kv_heads = 1;
    header.head_dim = kTinyDim;
    header.block = 4;
    header.rows = header.query_rows = kTinyRows;
    header.valid_rows = header.valid_query_rows = kTinyTokens;
    parts.head_map.assign(kTinyHeads, 0);
    for (std::int32_t tensor = 0; tensor < kNumTensors; ++tensor) {
      const auto is = [&](auto... any) { return ((tensor == index(any)) || ...); };
      const bool scalar = is(Tensor::lse, Tensor::delta);
      add_buffer(is(Tensor::k, Tensor::v, Tensor::dk, Tensor::dv) ? 1 : kTinyHeads,
                 scalar ? BufferType::fp32 : BufferType::io, scalar);
    }
  }

  std::int32_t add_buffer(std::int32_t heads, BufferType type, bool scalar = false, bool zeroed = false) {
    parts.buffers.push_back({kTinyRows, heads, type, scalar ? 1 : 0, zeroed ? 1 : 0});
    return static_cast<std::int32_t>(parts.buffers.size()) - 1;
  }

  /// All rows and heads of `buffer`, to or from `peer`.
  [[nodiscard]] Transfer whole(std::int32_t peer, std::int32_t buffer, bool add = false) const {
    return {peer, buffer, 0, kTinyRows, 0, parts.buffers[static_cast<std::size_t>(buffer)].heads, add ? 1 : 0, 0};
  }

  std::int32_t add_exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& recvs) {
    const auto append = [&](const std::vector<Transfer>& list) {
      const auto begin = static_cast<std::int64_t>(parts.transfers.size());
      parts.transfers.insert(parts.transfers.end(), list.begin(), list.end());
      return SectionRange{begin, begin + static_cast<std::int64_t>(list.size())};
    };
    const SectionRange send_range = append(sends);
    parts.exchanges.push_back({send_range, append(recvs)});
    return static_cast<std::int32_t>(parts.exchanges.size()) - 1;
  }

  std::int32_t add_work(std::int32_t k, std::int32_t v, std::int32_t dk, std::int32_t dv, bool clear = false) {
    Work work;
    work.q = index(Tensor::q);
    work.k = k;
    work.v = v;
    work.out = index(Tensor::out);
    work.lse = index(Tensor::lse);
    work.dout = index(Tensor::dout);
    work.delta = index(Tensor::delta);
    work.dk = dk;
    work.dv = dv;
    work.clear_gradients = clear ? 1 : 0;
    work.key_rows = kTinyRows;
    work.key_valid = {0, 2};
    parts.key_valid.assign(2, parts.header.block);
    parts.works.push_back(work);
    return static_cast<std::int32_t>(parts.works.size()) - 1;
  }

  SectionRange add_finishes(const std::vector<Finish>& list) {
    const auto begin = static_cast<std::int64_t>(parts.finishes.size());
    parts.finishes.insert(parts.finishes.end(), list.begin(), list.end());
    return {begin, begin + static_cast<std::int64_t>(list.size())};
  }

  [[nodiscard]] RankPlan make() const {
    const RankPlan plan = assemble(parts);
    return RankPlan::from_bytes({plan.bytes().begin(), plan.bytes().end()});
  }

  RankPlanParts parts;
};

/// A ring of `num_ranks` ranks: work s attends the keys of the rank s places before; key gradients are summed by the
/// owner in fp32 and cast in a last step without work.
inline TinyPlan tiny_ring(std::int32_t rank, std::int32_t num_ranks) {
  TinyPlan plan(rank, num_ranks);
  const std::int32_t dk_sum = plan.add_buffer(1, BufferType::fp32, false, true);
  const std::int32_t dv_sum = plan.add_buffer(1, BufferType::fp32, false, true);
  const std::int32_t own = plan.add_work(index(Tensor::k), index(Tensor::v), dk_sum, dv_sum);
  plan.parts.forward_steps.push_back({-1, own, {}, -1, 0});
  plan.parts.backward_steps.push_back({-1, own, {}, -1, 0});
  std::int32_t slots[2][4];  // two sets, so that one fills while the other is in use
  for (auto& slot : slots)
    for (int part = 0; part < 4; ++part) slot[part] = plan.add_buffer(1, part < 2 ? BufferType::io : BufferType::fp32);
  for (std::int32_t s = 1; s < num_ranks; ++s) {
    const std::int32_t source = (rank - s + num_ranks) % num_ranks;
    const std::int32_t target = (rank + s) % num_ranks;
    const auto& [k, v, dk, dv] = slots[s % 2];
    const std::int32_t fetch =
        plan.add_exchange({plan.whole(target, index(Tensor::k)), plan.whole(target, index(Tensor::v))},
                          {plan.whole(source, k), plan.whole(source, v)});
    const std::int32_t give_back =
        plan.add_exchange({plan.whole(source, dk), plan.whole(source, dv)},
                          {plan.whole(target, dk_sum, true), plan.whole(target, dv_sum, true)});
    const std::int32_t work = plan.add_work(k, v, dk, dv, true);
    plan.parts.forward_steps.push_back({fetch, work, {}, -1, 0});
    plan.parts.backward_steps.push_back({fetch, work, {}, give_back, 0});
  }
  Step last;
  last.finishes =
      plan.add_finishes({{Finish::kDQ, index(Tensor::dq)}, {dk_sum, index(Tensor::dk)}, {dv_sum, index(Tensor::dv)}});
  plan.parts.backward_steps.push_back(last);
  return plan;
}

}  // namespace marble::test

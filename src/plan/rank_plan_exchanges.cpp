// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Exchanges of a rank plan: fetches of keys, returns of their gradients, and the Ulysses scatter and gather.

#include "plan/rank_plan_maker.hpp"

namespace marble {
/// Transfers of k, then v, to or from every peer of the slice. `of_owner`: this rank's rows that others fetch;
/// otherwise the rows that it fetched, which lie in a slot, each peer and range from a block border on.
void RankPlanMaker::add_fetch_side(std::int32_t slice, std::int32_t k, std::int32_t v, bool of_owner, bool add) {
  std::int64_t slot_row = 0;
  for (const std::int32_t other : of_owner ? peers_.targets(ring_rank_, slice) : peers_.sources(ring_rank_, slice)) {
    const FetchList& list = (of_owner ? deliveries_ : fetches_)[static_cast<std::size_t>(other)];
    std::int64_t end_row = slot_row;
    for (const std::int32_t buffer : {k, v}) {
      end_row = slot_row;
      for (const RowRange& range : list.ranges) {
        parts_.transfers.push_back({.peer = peer(other),
                                    .buffer = buffer,
                                    .row = of_owner ? range.row : end_row,
                                    .rows = range.rows,
                                    .head = 0,
                                    .heads = heads_.kv.count,
                                    .add = add ? 1 : 0});
        end_row += (range.rows + plan_.block - 1) / plan_.block * plan_.block;
      }
    }
    slot_row = end_row;
  }
}

std::int32_t RankPlanMaker::add_fetch(std::int32_t slice) {
  const Slot& slot = slots_[static_cast<std::size_t>(slice) - 1];
  Exchange exchange;
  exchange.sends.begin = static_cast<std::int64_t>(parts_.transfers.size());
  add_fetch_side(slice, sides_.k, sides_.v, true, false);
  exchange.sends.end = exchange.recvs.begin = static_cast<std::int64_t>(parts_.transfers.size());
  add_fetch_side(slice, slot.k, slot.v, false, false);
  exchange.recvs.end = static_cast<std::int64_t>(parts_.transfers.size());
  parts_.exchanges.push_back(exchange);
  return static_cast<std::int32_t>(parts_.exchanges.size()) - 1;
}

std::int32_t RankPlanMaker::add_give_back(std::int32_t slice) {
  const Slot& slot = slots_[static_cast<std::size_t>(slice) - 1];
  Exchange exchange;
  exchange.sends.begin = static_cast<std::int64_t>(parts_.transfers.size());
  add_fetch_side(slice, slot.dk, slot.dv, false, false);
  exchange.sends.end = exchange.recvs.begin = static_cast<std::int64_t>(parts_.transfers.size());
  add_fetch_side(slice, sides_.dk_sum, sides_.dv_sum, true, true);
  exchange.recvs.end = static_cast<std::int64_t>(parts_.transfers.size());
  parts_.exchanges.push_back(exchange);
  return static_cast<std::int32_t>(parts_.exchanges.size()) - 1;
}

/// This rank's rows of all heads go out, one head share to each rank of the Ulysses group; its own head share of every
/// rank's rows comes in.
std::int32_t RankPlanMaker::add_scatter(const Pairs& q_like, const Pairs& kv_like) {
  const std::int32_t ulysses = plan_.mesh.ulysses;
  Exchange exchange;
  exchange.sends.begin = static_cast<std::int64_t>(parts_.transfers.size());
  for (std::int32_t u = 0; u < ulysses; ++u) {
    const HeadShare share = head_share(plan_.model, ulysses, u);
    const auto send = [&](const Pairs& pairs, const HeadRange& heads) {
      for (const auto& [source, target] : pairs)
        parts_.transfers.push_back({.peer = ring_rank_ * ulysses + u,
                                    .buffer = source,
                                    .row = 0,
                                    .rows = slice_rows(ulysses_rank_),
                                    .head = heads.begin,
                                    .heads = heads.count});
    };
    send(q_like, share.q);
    send(kv_like, share.kv);
  }
  exchange.sends.end = exchange.recvs.begin = static_cast<std::int64_t>(parts_.transfers.size());
  for (std::int32_t u = 0; u < ulysses; ++u) {
    const auto receive = [&](const Pairs& pairs, const HeadRange& heads) {
      for (const auto& [source, target] : pairs)
        parts_.transfers.push_back({.peer = ring_rank_ * ulysses + u,
                                    .buffer = target,
                                    .row = u * plan_.rows,
                                    .rows = slice_rows(u),
                                    .head = 0,
                                    .heads = heads.count});
    };
    receive(q_like, heads_.q);
    receive(kv_like, heads_.kv);
  }
  exchange.recvs.end = static_cast<std::int64_t>(parts_.transfers.size());
  parts_.exchanges.push_back(exchange);
  return static_cast<std::int32_t>(parts_.exchanges.size()) - 1;
}

/// The way back. Key heads that several ranks read are summed in fp32 into the owner's rows, in rank order.
std::int32_t RankPlanMaker::add_gather(const Pairs& q_like, const Pairs& kv_like) {
  const std::int32_t ulysses = plan_.mesh.ulysses;
  Exchange exchange;
  exchange.sends.begin = static_cast<std::int64_t>(parts_.transfers.size());
  for (std::int32_t u = 0; u < ulysses; ++u) {
    const auto send = [&](const Pairs& pairs, const HeadRange& heads) {
      for (const auto& [source, target] : pairs)
        parts_.transfers.push_back({.peer = ring_rank_ * ulysses + u,
                                    .buffer = source,
                                    .row = u * plan_.rows,
                                    .rows = slice_rows(u),
                                    .head = 0,
                                    .heads = heads.count});
    };
    send(q_like, heads_.q);
    send(kv_like, heads_.kv);
  }
  exchange.sends.end = exchange.recvs.begin = static_cast<std::int64_t>(parts_.transfers.size());
  for (std::int32_t u = 0; u < ulysses; ++u) {
    const HeadShare share = head_share(plan_.model, ulysses, u);
    const auto receive = [&](const Pairs& pairs, const HeadRange& heads, bool add) {
      for (const auto& [source, target] : pairs)
        parts_.transfers.push_back({.peer = ring_rank_ * ulysses + u,
                                    .buffer = target,
                                    .row = 0,
                                    .rows = slice_rows(ulysses_rank_),
                                    .head = heads.begin,
                                    .heads = heads.count,
                                    .add = add ? 1 : 0});
    };
    receive(q_like, share.q, false);
    receive(kv_like, share.kv, replicates_);
  }
  exchange.recvs.end = static_cast<std::int64_t>(parts_.transfers.size());
  parts_.exchanges.push_back(exchange);
  return static_cast<std::int32_t>(parts_.exchanges.size()) - 1;
}

}  // namespace marble

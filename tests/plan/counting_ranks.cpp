// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/counting_ranks.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <deque>
#include <map>

namespace marble::testing {
namespace {

constexpr std::int64_t kUnwritten = -1;

std::int64_t label(std::int64_t position, std::int32_t head) {
  return position * 1000 + head;
}

template <typename Fn>
void for_each_row(std::span<const Segment> segments, Fn&& fn) {
  for (const Segment& segment : segments)
    for (std::int64_t i = 0; i < segment.length; ++i) fn(segment, i);
}

std::span<const Segment> key_segments(const RankPlan& plan, const Work& work) {
  return plan.segments().subspan(static_cast<std::size_t>(work.key_segments.begin),
                                 static_cast<std::size_t>(work.key_segments.size()));
}

/// fn(query block, key block, class) for every block pair of the items.
template <typename Fn>
void for_each_tile(const RankPlan& plan, const SectionRange& items, Fn&& fn) {
  for (std::int64_t i = items.begin; i < items.end; ++i) {
    const Item& item = plan.items()[static_cast<std::size_t>(i)];
    for (std::int64_t r = item.run_begin; r < item.run_begin + item.run_count; ++r) {
      const Run& run = plan.runs()[static_cast<std::size_t>(r)];
      for (std::int32_t other = run.begin; other < run.end; ++other) fn(item.block, other, run.block_class);
    }
  }
}

}  // namespace

CountingRanks::CountingRanks(const Plan& plan, std::int32_t layer) : plan_(plan), tracks_(token_tracks(plan.layout)) {
  for (std::int32_t rank = 0; rank < plan.mesh.num_ranks(); ++rank) {
    const RankPlan made = make_rank_plan(plan, rank, layer);
    plans_.push_back(RankPlan::from_bytes({made.bytes().begin(), made.bytes().end()}));  // validated
    const RankPlan& rank_plan = plans_.back();
    const auto rows = static_cast<std::size_t>(rank_plan.header().query_rows);
    q_position_.emplace_back(rows, kUnwritten);
    q_canonical_.emplace_back(rows, kUnwritten);
    for_each_row(rank_plan.query_segments(), [&](const Segment& segment, std::int64_t i) {
      q_position_.back()[static_cast<std::size_t>(segment.row + i)] = segment.position + i;
      q_canonical_.back()[static_cast<std::size_t>(segment.row + i)] = segment.canonical + i;
    });
  }
  fill_inputs(false);
}

std::int64_t& CountingRanks::at(std::size_t rank, std::int32_t buffer, std::int64_t row, std::int32_t head) {
  const BufferDesc& desc = plans_[rank].buffers()[static_cast<std::size_t>(buffer)];
  return buffers_[rank][static_cast<std::size_t>(buffer)].at(static_cast<std::size_t>(row * desc.heads + head));
}

void CountingRanks::fill_inputs(bool keep_saved) {
  const std::vector<std::vector<Buffer>> before = std::move(buffers_);
  buffers_.assign(plans_.size(), {});
  state_.clear();
  dq_.clear();
  for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
    const RankPlan& plan = plans_[rank];
    for (const BufferDesc& desc : plan.buffers()) {
      const std::size_t index = buffers_[rank].size();
      buffers_[rank].emplace_back(static_cast<std::size_t>(desc.rows * desc.heads), desc.zeroed ? 0 : kUnwritten);
      if (keep_saved && desc.saved) buffers_[rank].back() = before[rank][index];
    }
    const auto local = static_cast<std::size_t>(plan.header().query_rows * plan.header().local_heads);
    state_.emplace_back(local, kUnwritten);
    dq_.emplace_back(local, 0);
    const std::vector<std::int64_t> positions = rank_positions(plan_, static_cast<std::int32_t>(rank));
    for (std::size_t row = 0; row < positions.size(); ++row)
      for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v, Tensor::dout, Tensor::delta, Tensor::lse}) {
        const auto buffer = static_cast<std::int32_t>(tensor);
        for (std::int32_t head = 0; head < plan.buffers()[static_cast<std::size_t>(buffer)].heads; ++head)
          at(rank, buffer, static_cast<std::int64_t>(row), head) = label(positions[row], head);
      }
  }
}

void CountingRanks::exchange(const std::vector<std::int32_t>& numbers) {
  std::map<std::pair<std::size_t, std::size_t>, std::deque<std::vector<std::int64_t>>> mail;
  const auto cells = [&](std::size_t rank, const Transfer& transfer, auto&& fn) {
    for (std::int64_t row = transfer.row; row < transfer.row + transfer.rows; ++row)
      for (std::int32_t head = transfer.head; head < transfer.head + transfer.heads; ++head)
        fn(at(rank, transfer.buffer, row, head));
  };
  const auto transfers = [&](std::size_t rank, bool sends) {
    if (numbers[rank] < 0) return std::span<const Transfer>{};
    const Exchange& e = plans_[rank].exchanges()[static_cast<std::size_t>(numbers[rank])];
    const SectionRange& range = sends ? e.sends : e.recvs;
    return plans_[rank].transfers().subspan(static_cast<std::size_t>(range.begin),
                                            static_cast<std::size_t>(range.size()));
  };
  for (std::size_t rank = 0; rank < plans_.size(); ++rank)
    for (const Transfer& send : transfers(rank, true)) {
      auto& message = mail[{rank, static_cast<std::size_t>(send.peer)}].emplace_back();
      cells(rank, send, [&](std::int64_t& cell) { message.push_back(cell); });
    }
  for (std::size_t rank = 0; rank < plans_.size(); ++rank)
    for (const Transfer& recv : transfers(rank, false)) {
      auto& queue = mail[{static_cast<std::size_t>(recv.peer), rank}];
      ensure(!queue.empty(), "rank {} waits for a message that rank {} never sends", rank, recv.peer);
      const std::vector<std::int64_t> message = queue.front();
      queue.pop_front();
      ensure(static_cast<std::int64_t>(message.size()) == recv.rows * recv.heads, "sizes differ");
      std::size_t i = 0;
      cells(rank, recv, [&](std::int64_t& cell) { cell = recv.add ? cell + message[i++] : message[i++]; });
    }
  for (const auto& [pair, queue] : mail) ensure(queue.empty(), "rank {} never receives a message", pair.second);
}

bool CountingRanks::legal(std::size_t rank, const Work& work, BlockClass block_class, std::int64_t q_row,
                          std::int64_t k_row) const {
  const RankPlan& plan = plans_[rank];
  bool found = false, by_tracks = false, by_range = false;
  for_each_row(key_segments(plan, work), [&](const Segment& segment, std::int64_t i) {
    if (segment.row + i != k_row) return;
    found = true;
    const TokenTracks key{segment.sample, segment.segment, segment.noise, segment.position + i};
    const MaskRule rule{plan.header().window, plan.header().clamp != 0};
    by_tracks =
        is_legal(rule, tracks_[static_cast<std::size_t>(q_position_[rank][static_cast<std::size_t>(q_row)])], key);
    if (plan.header().uses_tracks) return;
    const VisibleRule& visible = plan.rules()[static_cast<std::size_t>(segment.rule)];
    const std::int64_t k = segment.canonical + i, q = q_canonical_[rank][static_cast<std::size_t>(q_row)];
    by_range = visible.lo(k) <= q && q < visible.hi(k);
  });
  if (!found) return false;  // a pad
  if (!plan.header().uses_tracks) ensure(by_range == by_tracks, "range and tracks disagree");
  if (block_class == BlockClass::full) ensure(by_tracks, "an illegal pair in a full block");
  return by_tracks;
}

void CountingRanks::check_keys(std::size_t rank, const Work& work) const {
  const RankPlan& plan = plans_[rank];
  const std::int32_t kv_heads = plan.header().local_kv_heads;
  std::int64_t rows = 0;
  for_each_row(key_segments(plan, work), [&](const Segment& segment, std::int64_t i) {
    for (const std::int32_t buffer : {work.k, work.v}) {
      const std::int64_t cell =
          buffers_[rank][static_cast<std::size_t>(buffer)].at(static_cast<std::size_t>((segment.row + i) * kv_heads));
      ensure(cell / 1000 == segment.position + i, "row {} holds position {}, not {}", segment.row + i, cell / 1000,
             segment.position + i);
    }
    ++rows;
  });
  std::int64_t valid = 0;
  for (std::int64_t b = work.key_valid.begin; b < work.key_valid.end; ++b)
    valid += plan.key_valid()[static_cast<std::size_t>(b)];
  ensure(valid == rows, "{} valid rows, {} in segments", valid, rows);
}

void CountingRanks::attend_forward(std::size_t rank, const Work& work) {
  const RankPlan& plan = plans_[rank];
  const std::int64_t block = plan.header().block;
  const std::int32_t heads = plan.header().local_heads;
  check_keys(rank, work);
  const auto state = [&](std::int64_t row, std::int32_t head) -> std::int64_t& {
    return state_[rank][static_cast<std::size_t>(row * heads + head)];
  };
  const auto query_rows = [&](std::int32_t q_block, auto&& fn) {
    const std::int64_t end = std::min((q_block + 1) * block, plan.header().valid_query_rows);
    for (std::int64_t row = q_block * block; row < end; ++row)
      for (std::int32_t head = 0; head < heads; ++head) fn(row, head);
  };
  const auto items = plan.items().subspan(static_cast<std::size_t>(work.forward_items.begin),
                                          static_cast<std::size_t>(work.forward_items.size()));
  for (const Item& item : items)
    query_rows(item.block, [&](std::int64_t row, std::int32_t head) {
      ensure((item.flags & Item::kFirst) != 0 || state(row, head) >= 0, "state continued before its start");
      if (item.flags & Item::kFirst) state(row, head) = 0;
    });
  for_each_tile(plan, work.forward_items, [&](std::int32_t q, std::int32_t k, BlockClass block_class) {
    query_rows(q, [&](std::int64_t row, std::int32_t head) {
      for (std::int64_t key = k * block; key < (k + 1) * block; ++key)
        state(row, head) += legal(rank, work, block_class, row, key);
    });
  });
  for (const Item& item : items)
    if (item.flags & Item::kLast)
      query_rows(item.block, [&](std::int64_t row, std::int32_t head) {
        ensure(at(rank, work.out, row, head) == kUnwritten, "output written twice");
        at(rank, work.out, row, head) = at(rank, work.lse, row, head) = state(row, head);
      });
}

void CountingRanks::attend_backward(std::size_t rank, const Work& work) {
  const RankPlan& plan = plans_[rank];
  const std::int64_t block = plan.header().block;
  check_keys(rank, work);
  if (work.clear_gradients)
    for (const std::int32_t buffer : {work.dk, work.dv})
      for (std::int64_t row = 0; row < work.key_rows; ++row)
        for (std::int32_t head = 0; head < plan.header().local_kv_heads; ++head) at(rank, buffer, row, head) = 0;
  for_each_tile(plan, work.backward_items, [&](std::int32_t k, std::int32_t q, BlockClass block_class) {
    const std::int64_t end = std::min((q + 1) * block, plan.header().valid_query_rows);
    for (std::int64_t row = q * block; row < end; ++row)
      for (std::int64_t key = k * block; key < (k + 1) * block; ++key) {
        if (!legal(rank, work, block_class, row, key)) continue;
        for (std::int32_t head = 0; head < plan.header().local_heads; ++head) {
          const std::int64_t position = q_position_[rank][static_cast<std::size_t>(row)];
          const bool saved = plan.buffers()[static_cast<std::size_t>(work.lse)].saved != 0;  // forward's count
          ensure(at(rank, work.dout, row, head) / 1000 == position &&
                     at(rank, work.delta, row, head) / 1000 == position &&
                     at(rank, work.q, row, head) / 1000 == position &&
                     (saved || at(rank, work.lse, row, head) / 1000 == position),
                 "query tensors of another row");
          ++dq_[rank][static_cast<std::size_t>(row * plan.header().local_heads + head)];
          ++at(rank, work.dk, key, plan.head_map()[static_cast<std::size_t>(head)]);
          ++at(rank, work.dv, key, plan.head_map()[static_cast<std::size_t>(head)]);
        }
      }
  });
}

void CountingRanks::finish(std::size_t rank, const Step& step) {
  for (std::int64_t f = step.finishes.begin; f < step.finishes.end; ++f) {
    const Finish& finish = plans_[rank].finishes()[static_cast<std::size_t>(f)];
    const Buffer& source =
        finish.source == Finish::kDQ ? dq_[rank] : buffers_[rank][static_cast<std::size_t>(finish.source)];
    Buffer& target = buffers_[rank][static_cast<std::size_t>(finish.target)];
    ensure(source.size() == target.size(), "finish of {} cells into {}", source.size(), target.size());
    target = source;
  }
}

void CountingRanks::run(bool backward) {
  const auto steps = [&](std::size_t rank) {
    return backward ? plans_[rank].backward_steps() : plans_[rank].forward_steps();
  };
  for (std::size_t s = 0; s < steps(0).size(); ++s) {
    std::vector<std::int32_t> fetches, give_backs;
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      ensure(steps(rank).size() == steps(0).size(), "ranks differ in their number of steps");
      fetches.push_back(steps(rank)[s].fetch);
      give_backs.push_back(steps(rank)[s].give_back);
    }
    exchange(fetches);
    for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
      const Step& step = steps(rank)[s];
      if (step.work >= 0) {
        const Work& work = plans_[rank].works()[static_cast<std::size_t>(step.work)];
        backward ? attend_backward(rank, work) : attend_forward(rank, work);
      }
      finish(rank, step);
    }
    exchange(give_backs);
  }
}

void CountingRanks::forward() {
  fill_inputs(false);
  run(false);
}

void CountingRanks::backward() {
  fill_inputs(true);
  run(true);
}

std::vector<std::vector<std::int64_t>> CountingRanks::gather(Tensor tensor) const {
  const auto buffer = static_cast<std::size_t>(tensor);
  const auto heads = static_cast<std::size_t>(plans_[0].buffers()[buffer].heads);
  std::vector<std::vector<std::int64_t>> result(tracks_.size(), std::vector<std::int64_t>(heads, kUnwritten));
  for (std::size_t rank = 0; rank < plans_.size(); ++rank) {
    const std::vector<std::int64_t> positions = rank_positions(plan_, static_cast<std::int32_t>(rank));
    for (std::size_t row = 0; row < positions.size(); ++row)
      for (std::size_t head = 0; head < heads; ++head)
        result[static_cast<std::size_t>(positions[row])][head] = buffers_[rank][buffer][row * heads + head];
  }
  return result;
}

}  // namespace marble::testing

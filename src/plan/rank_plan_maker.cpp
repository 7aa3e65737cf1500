// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/rank_plan_maker.hpp"

#include "base/parallel.hpp"
#include "plan/local_split.hpp"

#include "marble/error.hpp"

#include <algorithm>

namespace marble {
namespace {

template <typename T>
std::int64_t size_of_section(const std::vector<T>& section) {
  return static_cast<std::int64_t>(section.size());
}

}  // namespace

RankPlanMaker::RankPlanMaker(const Plan& plan, const LayerPlan& layer, std::int32_t layer_index, std::int32_t rank,
                             int threads)
    : plan_(plan),
      layer_(layer),
      rank_(rank),
      ring_rank_(rank / plan.mesh.ulysses),
      ulysses_rank_(rank % plan.mesh.ulysses),
      threads_(threads),
      heads_(head_share(plan.model, plan.mesh.ulysses, ulysses_rank_)),
      replicates_(replicates_key_heads(plan.model, plan.mesh.ulysses)),
      placed_(place_layer(plan, layer.kind.rule, threads)),
      peers_(plan, layer) {
  const std::int32_t ring = plan.mesh.ring;
  const bool whole_shards = layer.strategy != Strategy::alltoall;
  const auto here = static_cast<std::size_t>(ring_rank_);
  fetches_.resize(static_cast<std::size_t>(ring));
  deliveries_.resize(static_cast<std::size_t>(ring));
  parallel_for(2 * ring, threads, [&](std::int64_t task) {
    const auto other = static_cast<std::size_t>(task / 2);
    if (task % 2 == 0)
      fetches_[other] =
          make_fetch_list(placed_.rows[here], placed_.key_blocks[other], plan.block, whole_shards || other == here);
    else if (other != here)
      deliveries_[other] = make_fetch_list(placed_.rows[other], placed_.key_blocks[here], plan.block, whole_shards);
  });
  local_rule_.assign(placed_.order.spans.size(), -1);
  parts_.header.layer = static_cast<std::uint32_t>(layer_index);
}

RankPlan RankPlanMaker::make() {
  add_header();
  add_buffers();
  add_query_segments();
  add_works();
  add_steps();
  return assemble(parts_);
}

std::int64_t RankPlanMaker::slice_rows(std::int32_t ulysses_rank) const {
  const std::int64_t tokens = plan_.ring_tokens[static_cast<std::size_t>(ring_rank_)];
  return std::clamp<std::int64_t>(tokens - ulysses_rank * plan_.rows, 0, plan_.rows);
}

void RankPlanMaker::add_header() {
  RankPlanHeader& header = parts_.header;
  header.plan_digest = plan_.digest;
  header.rank = rank_;
  header.num_ranks = plan_.mesh.num_ranks();
  header.heads = plan_.model.heads;
  header.kv_heads = plan_.model.kv_heads;
  header.local_heads = heads_.q.count;
  header.local_kv_heads = heads_.kv.count;
  header.head_dim = plan_.model.head_dim;
  header.block = plan_.block;
  header.rows = plan_.rows;
  header.valid_rows = slice_rows(ulysses_rank_);
  header.query_rows = plan_.rows * plan_.mesh.ulysses;
  header.valid_query_rows = plan_.ring_tokens[static_cast<std::size_t>(ring_rank_)];
  header.window = layer_.kind.rule.window;
  header.clamp = layer_.kind.rule.clamp ? 1 : 0;
  header.uses_tracks = layer_.uses_tracks ? 1 : 0;
  const std::int32_t group = plan_.model.heads / plan_.model.kv_heads;
  for (std::int32_t head = heads_.q.begin; head < heads_.q.end(); ++head)
    parts_.head_map.push_back(head / group - heads_.kv.begin);
}

std::int32_t RankPlanMaker::add_buffer(const BufferDesc& desc) {
  parts_.buffers.push_back(desc);
  return static_cast<std::int32_t>(parts_.buffers.size()) - 1;
}

void RankPlanMaker::add_buffers() {
  add_caller_buffers();
  const std::int64_t rows = parts_.header.query_rows;
  const std::int32_t q_count = heads_.q.count, kv_count = heads_.kv.count;
  const std::int32_t kept = plan_.keep != Keep::nothing ? 1 : 0;
  if (plan_.mesh.ulysses > 1) {
    sides_.q = add_buffer({.rows = rows, .heads = q_count, .saved = kept});
    for (std::int32_t* side : {&sides_.k, &sides_.v})
      *side = add_buffer({.rows = rows, .heads = kv_count, .saved = kept});
    for (std::int32_t* side : {&sides_.out, &sides_.dout, &sides_.dq})
      *side = add_buffer({.rows = rows, .heads = q_count});
    sides_.lse = add_buffer({.rows = rows, .heads = q_count, .type = BufferType::fp32, .scalar = 1, .saved = kept});
    sides_.delta = add_buffer({.rows = rows, .heads = q_count, .type = BufferType::fp32, .scalar = 1});
    for (std::int32_t* side : {&sides_.dk, &sides_.dv})
      if (!replicates_) *side = add_buffer({.rows = rows, .heads = kv_count});
  }
  const auto add_sum = [&](std::int64_t sum_rows, std::int32_t heads) {
    return add_buffer({.rows = sum_rows, .heads = heads, .type = BufferType::fp32, .zeroed = 1});
  };
  sides_.dk_sum = add_sum(rows, kv_count);
  sides_.dv_sum = add_sum(rows, kv_count);
  if (replicates_) {
    sides_.dk_owner_sum = add_sum(plan_.rows, plan_.model.kv_heads);
    sides_.dv_owner_sum = add_sum(plan_.rows, plan_.model.kv_heads);
  }
  add_slots();
}

void RankPlanMaker::add_caller_buffers() {
  const auto add = [&](std::int32_t heads, bool scalar) {
    return add_buffer({.rows = plan_.rows,
                       .heads = heads,
                       .type = scalar ? BufferType::fp32 : BufferType::io,
                       .scalar = scalar ? 1 : 0});
  };
  const std::int32_t heads = plan_.model.heads, kv_heads = plan_.model.kv_heads;
  sides_.q = add(heads, false);  // in the order of enum Tensor
  sides_.k = add(kv_heads, false);
  sides_.v = add(kv_heads, false);
  sides_.out = add(heads, false);
  sides_.lse = add(heads, true);
  sides_.dout = add(heads, false);
  sides_.delta = add(heads, true);
  sides_.dq = add(heads, false);
  sides_.dk = add(kv_heads, false);
  sides_.dv = add(kv_heads, false);
}

void RankPlanMaker::add_slots() {
  const bool kept = plan_.keep == Keep::fetched;
  for (std::int32_t slice = 1; slice <= num_slices(); ++slice) {
    Slot slot{};
    if (slice > 2) slot = slots_[slots_.size() - 2];
    const auto add = [&](BufferType type, bool saved) {
      return add_buffer({.rows = layer_.slot_rows, .heads = heads_.kv.count, .type = type, .saved = saved ? 1 : 0});
    };
    if (slice <= 2 || kept) slot.k = add(BufferType::io, kept), slot.v = add(BufferType::io, kept);
    if (slice <= 2) slot.dk = add(BufferType::fp32, false), slot.dv = add(BufferType::fp32, false);
    slots_.push_back(slot);
  }
}

Segment RankPlanMaker::make_segment(const Fragment& fragment, std::int64_t row) {
  const CanonicalSpan& span = placed_.order.spans[static_cast<std::size_t>(fragment.span)];
  Segment segment{row,         fragment.length, fragment.canonical, fragment.canonical - span.shift(),
                  span.sample, span.segment,    span.noise,         -1};
  if (layer_.uses_tracks) return segment;
  std::int32_t& rule = local_rule_[static_cast<std::size_t>(fragment.span)];
  if (rule < 0) {
    rule = static_cast<std::int32_t>(parts_.rules.size());
    parts_.rules.push_back(placed_.visibility.of_span(fragment.span).front().rule);
  }
  segment.rule = rule;
  return segment;
}

void RankPlanMaker::add_query_segments() {
  for (const Fragment& fragment : placed_.key_blocks[static_cast<std::size_t>(ring_rank_)].fragments) {
    Segment segment = make_segment(fragment, fragment.row);
    if (!parts_.query_segments.empty()) {
      Segment& last = parts_.query_segments.back();
      if (last.canonical + last.length == segment.canonical && last.position + last.length == segment.position &&
          last.rule == segment.rule && last.noise == segment.noise && last.segment == segment.segment &&
          last.sample == segment.sample) {
        last.length += segment.length;
        continue;
      }
    }
    parts_.query_segments.push_back(segment);
  }
}

SectionRange RankPlanMaker::add_finishes(const std::vector<Finish>& finishes) {
  const std::int64_t begin = size_of_section(parts_.finishes);
  parts_.finishes.insert(parts_.finishes.end(), finishes.begin(), finishes.end());
  return {begin, size_of_section(parts_.finishes)};
}

void RankPlanMaker::add_steps() {
  const bool ulysses = plan_.mesh.ulysses > 1;
  const Sides& s = sides_;
  const auto caller = [](Tensor tensor) { return static_cast<std::int32_t>(tensor); };
  std::int32_t scatter = -1, gather = -1, scatter_back = -1;
  const bool keeps_sides = plan_.keep != Keep::nothing, keeps_fetches = plan_.keep == Keep::fetched;
  if (ulysses) {
    scatter = add_scatter({{caller(Tensor::q), s.q}}, {{caller(Tensor::k), s.k}, {caller(Tensor::v), s.v}});
    gather = add_gather({{s.out, caller(Tensor::out)}, {s.lse, caller(Tensor::lse)}}, {});
    Pairs q_like = {{caller(Tensor::dout), s.dout}, {caller(Tensor::delta), s.delta}}, kv_like;
    if (!keeps_sides) {
      q_like.insert(q_like.end(), {{caller(Tensor::q), s.q}, {caller(Tensor::lse), s.lse}});
      kv_like = {{caller(Tensor::k), s.k}, {caller(Tensor::v), s.v}};
    }
    scatter_back = add_scatter(q_like, kv_like);
  }
  for (std::int32_t w = 0; w <= num_slices(); ++w) {
    const std::int32_t fetch = w > 0 ? add_fetch(w) : -1;
    parts_.forward_steps.push_back(
        {.fetch = w > 0 ? fetch : scatter, .work = w, .give_back = w == num_slices() ? gather : -1});
    const std::int32_t fetch_again = keeps_fetches ? -1 : fetch;
    parts_.backward_steps.push_back(
        {.fetch = w > 0 ? fetch_again : scatter_back, .work = w, .give_back = w > 0 ? add_give_back(w) : -1});
  }
  if (splits_own_keys(plan_, layer_))
    parts_.backward_steps.push_back({.work = own_last_items_.empty() ? -1 : num_slices() + 1});
  Step finish{};
  if (!replicates_) {
    finish.finishes = add_finishes({{Finish::kDQ, s.dq}, {s.dk_sum, s.dk}, {s.dv_sum, s.dv}});
    if (ulysses)
      finish.give_back =
          add_gather({{s.dq, caller(Tensor::dq)}}, {{s.dk, caller(Tensor::dk)}, {s.dv, caller(Tensor::dv)}});
    parts_.backward_steps.push_back(finish);
    return;
  }
  finish.finishes = add_finishes({{Finish::kDQ, s.dq}});
  finish.give_back = add_gather({{s.dq, caller(Tensor::dq)}}, {{s.dk_sum, s.dk_owner_sum}, {s.dv_sum, s.dv_owner_sum}});
  parts_.backward_steps.push_back(finish);
  parts_.backward_steps.push_back(
      {.finishes = add_finishes({{s.dk_owner_sum, caller(Tensor::dk)}, {s.dv_owner_sum, caller(Tensor::dv)}})});
}

RankPlan make_rank_plan(const Plan& plan, std::int32_t rank, std::int32_t layer, int threads) {
  require(rank >= 0 && rank < plan.mesh.num_ranks(), "rank {} is not in 0..{}", rank, plan.mesh.num_ranks() - 1);
  require(layer >= 0 && layer < static_cast<std::int32_t>(plan.layers.size()), "layer kind {} is not in 0..{}", layer,
          plan.layers.size() - 1);
  return RankPlanMaker(plan, plan.layers[static_cast<std::size_t>(layer)], layer, rank, threads).make();
}

}  // namespace marble

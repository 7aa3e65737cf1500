// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/backward_work.hpp"

#include "backend/cuda/attention_backward.hpp"
#include "backend/cuda/backward_walk.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/tensor_map.hpp"
#include "backend/cuda/tile_dims.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace marble::cuda {
namespace {

DqLayout layout_of(const RankPlan& plan) {
  const RankPlanHeader& header = plan.header();
  std::int64_t most_items = 0;
  for (const Work& work : plan.works()) most_items = std::max(most_items, work.backward_items.size());
  return dq_layout(header.local_heads, num_blocks(header.query_rows), tile_dim(header.head_dim),
                   header.local_kv_heads * most_items);
}

/// True when base and strides are multiples of `bytes`.
bool is_aligned(const TensorView& view, std::int64_t bytes) {
  const std::int64_t element = size_of(view.dtype);
  return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
         view.row_stride * element % bytes == 0 && view.head_stride * element % bytes == 0;
}

/// True when inputs can be read 16 bytes at a time, and by the copy engine.
bool is_aligned(const BackwardTensors& tensors) {
  return tensors.q.dim % 8 == 0 && is_aligned(tensors.q, 16) && is_aligned(tensors.k, 16) &&
         is_aligned(tensors.v, 16) && is_aligned(tensors.dout, 16);
}

/// Splits that cost a work least time. Its tail, in which multiprocessors run out of units, lasts about half of the
/// longest unit; every further split adds the units once more, and a unit costs what a few tiles do besides its own:
/// keys to load, a pipeline to fill, sums to add.
std::int64_t splits_for_tail(std::int64_t longest_unit, std::int64_t num_units, int num_multiprocessors) {
  constexpr std::int64_t kTilesOfUnit = 8;
  const auto squared =
      static_cast<double>(longest_unit * num_multiprocessors) / static_cast<double>(2 * kTilesOfUnit * num_units);
  return std::lround(std::sqrt(squared));
}

/// What a unit sweeps of a query block: Q, dO and the sums of dQ.
constexpr std::int64_t block_bytes(int dim) {
  return std::int64_t{kBlock} * dim * (2 + 2 + 4);
}

/// Splits with which what all units of one sweep takes two thirds of the cache. CTAs drift apart: each would fetch for
/// itself.
std::int64_t splits_for_cache(std::int64_t mean_unit, int dim, int cache_bytes) {
  constexpr std::int64_t kMost = 128;
  const std::int64_t room = std::max<std::int64_t>(std::int64_t{cache_bytes} * 2 / 3, 1);
  return std::min((mean_unit * block_bytes(dim) + room - 1) / room, kMost);
}

/// No more than are of equal lengths: splits of one item begin together.
std::int64_t even_splits(std::int64_t splits, std::int64_t group) {
  if (splits > group) return splits / group * group;
  while (group % splits != 0) --splits;
  return splits;
}

/// Units that share an item's queries: several when the longest item would outlast an even share of the work by far,
/// when few long units would leave a tail, or when units sweep more than the cache holds; and two where units wait for
/// each other, to shorten their queues. A function of plan, options and machine alone.
int backward_splits(const RankPlanHeader& header, const BoundWork& work, std::int64_t num_items, bool deterministic,
                    const LaunchTarget& target) {
  constexpr std::int64_t kFewestTiles = 8;  // a split shorter than this costs more in its sums than it saves
  const std::int64_t group = header.local_heads / header.local_kv_heads;
  const std::int64_t longest = work.longest_backward * group;
  const std::int64_t share =
      std::max<std::int64_t>(work.backward_tiles * header.local_heads / target.num_multiprocessors, 1);
  const int dim = tile_dim(header.head_dim);
  const int key_tiles = backward_key_tiles(dim);
  const std::int64_t for_cache = splits_for_cache(work.backward_tiles * group / num_items, dim, target.cache_bytes);
  const std::int64_t for_order = deterministic ? std::max<std::int64_t>(2, for_cache) : 1;
  const std::int64_t for_tail =
      splits_for_tail(longest / key_tiles, num_items * key_tiles * header.local_kv_heads, target.num_multiprocessors);
  const std::int64_t for_balance =
      std::min<std::int64_t>(std::max((longest + share - 1) / share, for_tail), kMaxSplits);
  const std::int64_t wanted = std::max({for_balance, std::min(for_order, group), deterministic ? 1 : for_cache});
  return static_cast<int>(even_splits(std::max<std::int64_t>(std::min(wanted, longest / kFewestTiles), 1), group));
}

/// Key heads whose units alternate where sums have a planned order. Units of one head queue for the same sums, so
/// several go together, with as many query heads at work as the cache holds of a mean item's length; all key heads,
/// when one head's units do not fill the machine.
std::int32_t heads_together(const RankPlanHeader& header, std::int64_t units_per_head, std::int64_t mean_item,
                            int head_splits, const LaunchTarget& target) {
  constexpr std::int64_t kFewest = 4, kMost = 16;  // query heads
  if (units_per_head <= target.num_multiprocessors) return header.local_kv_heads;
  const std::int64_t item_bytes = std::max<std::int64_t>(mean_item, 1) * block_bytes(tile_dim(header.head_dim));
  const std::int64_t held = std::clamp(target.cache_bytes / item_bytes, kFewest, kMost);
  const auto query_heads = static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint64_t>(held)));
  return std::clamp(query_heads * head_splits * header.local_kv_heads / header.local_heads, 1, header.local_kv_heads);
}

/// The planned order of a work, its counters reset.
PlannedOrder plan_order(const CudaBoundPlan& bound, std::int32_t index, const DqLayout& layout, float* accumulator,
                        cudaStream_t stream) {
  const BoundRanks& ranks = bound.backward_ranks(index);
  auto* const turns = reinterpret_cast<std::int32_t*>(accumulator);
  check_cuda(cudaMemsetAsync(turns + layout.query_turns, 0,
                             static_cast<std::size_t>(layout.size - layout.query_turns) * sizeof(std::int32_t), stream),
             "resetting the turns of a planned order");
  return {ranks.ranks.as<std::int32_t>(), ranks.item_begin.as<std::int64_t>(), turns + layout.query_turns,
          turns + layout.key_turns};
}

void set_scales(BackwardParams& params, const AttentionOptions& options) {
  constexpr double kLog2E = 1.4426950408889634;
  params.gradient_scale = static_cast<float>(options.softmax_scale);
  params.has_softcap = options.softcap > 0.0;
  if (params.has_softcap) {
    params.score_scale = static_cast<float>(options.softmax_scale / options.softcap);
    params.exponent_scale = static_cast<float>(options.softcap * kLog2E);
  } else {
    params.exponent_scale = static_cast<float>(options.softmax_scale * kLog2E);
  }
}

}  // namespace

std::int64_t dq_accumulator_bytes(const RankPlan& plan) {
  return layout_of(plan).size * std::int64_t{sizeof(float)};
}

void attend_backward(const CudaBoundPlan& bound, std::int32_t index, const BackwardTensors& tensors,
                     const AttentionOptions& options, const LaunchTarget& target) {
  const RankPlanHeader& header = bound.plan().header();
  const BoundWork& work = bound.work(index);
  const SectionRange& items = bound.plan().works()[static_cast<std::size_t>(index)].backward_items;
  if (items.size() == 0 || header.local_heads == 0) return;
  const int dim = tile_dim(header.head_dim);
  const DqLayout layout = layout_of(bound.plan());
  auto* accumulator = static_cast<float*>(tensors.dq_accumulator);

  BackwardParams params;
  params.items = bound.items() + items.begin;
  params.runs = bound.runs();
  params.group_begin = bound.group_begin();
  params.group_heads = bound.group_heads();
  params.visibility = work.visibility;
  params.num_items = static_cast<std::int32_t>(items.size());
  params.num_kv_heads = header.local_kv_heads;
  params.num_blocks = static_cast<std::int32_t>(num_blocks(header.query_rows));
  params.head_dim = header.head_dim;
  params.is_aligned = is_aligned(tensors);
  params.valid_query_rows = static_cast<std::int32_t>(header.valid_query_rows);
  params.valid_key_rows = static_cast<std::int32_t>(work.valid_key_rows);
  set_scales(params, options);
  params.q = strided(tensors.q);
  params.k = strided(tensors.k);
  params.v = strided(tensors.v);
  params.dout = strided(tensors.dout);
  params.dk = strided(tensors.dk);
  params.dv = strided(tensors.dv);
  params.dq = accumulator;
  params.lse = accumulator + layout.lse;
  params.minus_delta = accumulator + layout.minus_delta;
  params.counter = target.counter;
  params.path = bound.backward_path();
  const int splits = backward_splits(header, work, params.num_items, options.deterministic, target);
  params.head_splits = std::min(splits, header.local_heads / header.local_kv_heads);
  params.block_splits = splits / params.head_splits;
  if (options.deterministic) {
    params.order = plan_order(bound, index, layout, accumulator, target.stream);
    params.heads_together = heads_together(header, std::int64_t{params.num_items} * backward_key_tiles(dim) * splits,
                                           work.backward_tiles / params.num_items, params.head_splits, target);
  } else if (!params.path.ascends) {
    params.by_length = work.by_length;
  }
  order_units(params, backward_key_tiles(dim));

  prepare_row_statistics(tensors.lse, tensors.delta, params.valid_query_rows, params.gradient_scale, layout,
                         accumulator, target.stream);
  check_cuda(cudaMemsetAsync(params.counter, 0, sizeof(std::int32_t), target.stream), "resetting the work counter");
  // The Hopper kernel writes key gradients in pairs.
  if (!target.is_hopper || !params.is_aligned || !is_aligned(tensors.dk, 8) || !is_aligned(tensors.dv, 8))
    return launch_attention_backward_sm80(params, tensors.q.dtype, dim, target.shared_bytes, target.stream);
  const int num_ctas = std::min(params.num_units, target.num_multiprocessors);
  const BackwardTensorMaps maps = {make_tensor_map(tensors.q, params.valid_query_rows, backward_tile_queries(dim)),
                                   make_tensor_map(tensors.k, params.valid_key_rows, backward_tile_keys(dim)),
                                   make_tensor_map(tensors.v, params.valid_key_rows, backward_tile_keys(dim)),
                                   make_tensor_map(tensors.dout, params.valid_query_rows, backward_tile_queries(dim))};
  launch_attention_backward_sm90(params, maps, tensors.q.dtype, dim, num_ctas, target.stream);
}

void finish_dq(const RankPlan& plan, const void* accumulator, const TensorView& dq, cudaStream_t stream) {
  finish_dq_tiles(static_cast<const float*>(accumulator), layout_of(plan), dq, plan.header().valid_query_rows,
                  tile_dim(plan.header().head_dim), stream);
}

}  // namespace marble::cuda

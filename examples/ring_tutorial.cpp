// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Ring attention from first principles, checked live. Part 1: 16 tokens of one bidirectional span on a ring of 4
// ranks (threads), each holding 4 of them; the result must equal full attention. Part 2: what that buys at scale.
// Part 3: a causal sequence, where contiguous shards leave early ranks idle, and how other placements level the work.

#include "marble/attention.hpp"
#include "marble/backend.hpp"
#include "marble/layout.hpp"
#include "marble/plan.hpp"
#include "marble/rank_plan.hpp"
#include "marble/tensor.hpp"
#include "marble/transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

using Rows = std::vector<float>;  // [tokens, dim], one head

constexpr std::int64_t kTokens = 16;
constexpr std::int32_t kDim = 8;
constexpr std::int32_t kRanks = 4;
constexpr double kScale = 0.35355339059327373;  // 1 / sqrt(kDim)

Rows random_rows(std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Rows rows(kTokens * kDim);
  for (float& value : rows) value = normal(engine);
  return rows;
}

/// softmax(Q K^T scale) V with everything in one place.
Rows full_attention(const Rows& q, const Rows& k, const Rows& v) {
  Rows out(q.size(), 0.0F);
  for (std::size_t i = 0; i < kTokens; ++i) {
    std::vector<double> weight(kTokens, 0.0);
    double sum = 0.0;
    for (std::size_t j = 0; j < kTokens; ++j) {
      double dot = 0.0;
      for (std::size_t d = 0; d < kDim; ++d) dot += double{q[i * kDim + d]} * double{k[j * kDim + d]};
      weight[j] = std::exp(dot * kScale);
      sum += weight[j];
    }
    for (std::size_t d = 0; d < kDim; ++d) {
      double value = 0.0;
      for (std::size_t j = 0; j < kTokens; ++j) value += weight[j] * double{v[j * kDim + d]};
      out[i * kDim + d] = static_cast<float>(value / sum);
    }
  }
  return out;
}

/// What one rank does: it holds its own rows of q, k and v, and the executor brings it the other ranks' keys.
void attend_on_one_rank(const marble::Plan& plan, const Rows& q, const Rows& k, const Rows& v, Rows& out,
                        marble::Transport& transport) {
  const auto positions = marble::rank_positions(plan, transport.rank());
  const auto take = [&](const Rows& whole) {
    Rows shard(static_cast<std::size_t>(plan.rows) * kDim, 0.0F);
    for (std::size_t row = 0; row < positions.size(); ++row) {
      std::copy_n(whole.begin() + positions[row] * kDim, kDim, shard.begin() + static_cast<std::int64_t>(row) * kDim);
    }
    return shard;
  };
  Rows q_shard = take(q), k_shard = take(k), v_shard = take(v), out_shard(q_shard.size());
  std::vector<float> lse(static_cast<std::size_t>(plan.rows));
  const auto view = [&](Rows& rows) {
    return marble::dense_view(rows.data(), marble::DType::fp32, plan.rows, 1, kDim);
  };

  const auto backend = marble::make_cpu_backend(1);
  const marble::RankPlan rank_plan = marble::make_rank_plan(plan, transport.rank());
  marble::BoundAttention attention(rank_plan, marble::DType::fp32, {kScale, 0.0}, *backend, transport);
  marble::attention_forward(attention, {view(q_shard), view(k_shard), view(v_shard), view(out_shard),
                                        marble::dense_view(lse.data(), marble::DType::fp32, plan.rows, 1, 1)});

  for (std::size_t row = 0; row < positions.size(); ++row) {
    std::copy_n(out_shard.begin() + static_cast<std::int64_t>(row) * kDim, kDim, out.begin() + positions[row] * kDim);
  }
}

/// Bytes of the largest fetch of a rank: keys and values of one shard.
std::int64_t largest_fetch_bytes(const marble::RankPlan& plan) {
  std::int64_t largest = 0;
  for (const marble::Step& step : plan.forward_steps()) {
    if (step.fetch < 0) continue;
    const marble::SectionRange received = plan.exchanges()[static_cast<std::size_t>(step.fetch)].recvs;
    std::int64_t bytes = 0;
    for (std::int64_t t = received.begin; t < received.end; ++t) {
      const marble::Transfer& transfer = plan.transfers()[static_cast<std::size_t>(t)];
      bytes += transfer.rows * transfer.heads * kDim * marble::size_of(marble::DType::fp32);
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

marble::Plan plan_one_span(marble::Mode mode, std::int64_t tokens, marble::Placement placement, std::int32_t block,
                           std::int64_t stripe) {
  marble::Layout layout;
  const marble::Span span{mode, tokens};
  layout.add_sample({&span, 1});
  marble::Model model;
  model.head_dim = kDim;
  marble::Mesh mesh;
  mesh.ring = kRanks;
  marble::PlanOptions options;
  options.placement = placement;
  options.strategy = marble::Strategy::ring;
  options.block = block;
  options.stripe = stripe;
  return marble::make_plan(layout, model, mesh, options);
}

bool ring_equals_full_attention() {
  const marble::Plan plan =
      plan_one_span(marble::Mode::full, kTokens, marble::Placement::contiguous, kTokens / kRanks, kTokens / kRanks);
  const Rows q = random_rows(1), k = random_rows(2), v = random_rows(3);
  Rows ring(q.size());
  marble::run_local_ranks(kRanks, {},
                          [&](marble::Transport& transport) { attend_on_one_rank(plan, q, k, v, ring, transport); });

  const Rows full = full_attention(q, k, v);
  float difference = 0.0F;
  for (std::size_t i = 0; i < full.size(); ++i) difference = std::max(difference, std::abs(full[i] - ring[i]));
  const bool equal = difference < 1e-5F;
  const auto rank_plan = marble::make_rank_plan(plan, 0);
  fmt::print("ring output matches full attention: {}\n", equal);
  fmt::print("max difference: {:.3g}\n\n", difference);
  fmt::print("ranks in the ring           : {}\n", kRanks);
  fmt::print("tokens held per rank        : {}  (of {})\n", plan.ring_tokens[0], kTokens);
  fmt::print("largest KV block in flight  : {} bytes\n", largest_fetch_bytes(rank_plan));
  fmt::print("whole-sequence KV would be  : {} bytes\n", 2 * kTokens * kDim * marble::size_of(marble::DType::fp32));
  fmt::print("steps                       : {}, the first on a rank's own keys\n", rank_plan.forward_steps().size());
  return equal;
}

void print_what_it_buys() {
  constexpr double kMiB = 1024.0 * 1024.0;
  fmt::print("\nwhat this buys at scale, one head of 128, bf16\n");
  fmt::print("{:>8}{:>14}{:>16}{:>14}\n", "ranks", "tokens", "KV per rank", "full KV");
  for (const std::int64_t ranks : {8, 64, 512}) {
    const std::int64_t tokens = ranks * 32768;
    const double full = 2.0 * 128.0 * 2.0 * static_cast<double>(tokens);
    fmt::print("{:>8}{:>14}{:>12.1f} MiB{:>10.1f} GiB\n", ranks, tokens, full / static_cast<double>(ranks) / kMiB,
               full / 1024.0 / kMiB);
  }
}

/// Visible block pairs of each rank.
std::vector<std::int64_t> tiles_by_rank(const marble::Plan& plan) {
  std::vector<std::int64_t> tiles;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const marble::RankPlan rank_plan = marble::make_rank_plan(plan, rank);
    std::int64_t sum = 0;
    for (const marble::Work& work : rank_plan.works()) sum += work.tiles;
    tiles.push_back(sum);
  }
  return tiles;
}

void print_balance(const std::string& name, const marble::Plan& plan) {
  const std::vector<std::int64_t> tiles = tiles_by_rank(plan);
  fmt::print("{:<40}{:>5}{:>5}{:>5}{:>5}{:>14.3f}{:>14.3f}\n", name, tiles[0], tiles[1], tiles[2], tiles[3],
             marble::balance(plan).busiest_over_mean_pairs, marble::balance(plan).step_busiest_over_mean_pairs);
}

void print_imbalance() {
  constexpr std::int64_t kLong = 1024;
  constexpr std::int32_t kShard = kLong / kRanks;
  constexpr std::int32_t kHalf = kShard / 2;
  using marble::Placement;
  const auto causal = [](Placement placement, std::int32_t block, std::int64_t stripe) {
    return plan_one_span(marble::Mode::causal, kLong, placement, block, stripe);
  };
  fmt::print("\ncausal attention over {} tokens: visible blocks per rank, and the busiest rank over the mean\n", kLong);
  fmt::print("{:<40}{:>5}{:>5}{:>5}{:>5}{:>14}{:>14}\n", "", "r0", "r1", "r2", "r3", "in all", "step by step");
  print_balance("contiguous, a block is a shard", causal(Placement::contiguous, kShard, kShard));
  print_balance("contiguous, a block is half a shard", causal(Placement::contiguous, kHalf, kHalf));
  print_balance("zigzag, a block is half a shard", causal(Placement::zigzag, kHalf, kHalf));
  print_balance("striped by single tokens", causal(Placement::striped, kHalf, 1));
  print_balance("ptrr, a block is half a shard", causal(Placement::ptrr, kHalf, kHalf));
}

}  // namespace

int main() {
  const bool equal = ring_equals_full_attention();
  print_what_it_buys();
  print_imbalance();
  return equal ? 0 : 1;
}

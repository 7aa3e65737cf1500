// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The dealt placement: whole samples go to ranks so that tokens and work are equal (sample_dealer.hpp). A sample
// heavier than a share of a rank's mean is split into parts. Smaller shares, and one more part for what the busiest
// rank holds, are tried while the work is not level; the best deal weighs imbalance against the keys that splits send.

#include "plan/placed_layer.hpp"
#include "plan/placement.hpp"
#include "plan/sample_dealer.hpp"
#include "plan/tile_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace marble {
namespace {

/// The fewest parts, each of at most `share` of a rank's mean work and no more tokens than a rank's rows.
std::vector<std::int32_t> split_by_share(const PlacementInput& input, const std::vector<DealtSample>& samples,
                                         double share) {
  double work = 0.0;
  for (const DealtSample& sample : samples) work += static_cast<double>(sample.work);
  const double most = std::max(1.0, share * work / input.ring);
  const auto rows = static_cast<double>(ring_rows(input.order.num_tokens, input.ring, input.block));
  std::vector<std::int32_t> parts;
  for (const DealtSample& sample : samples) {
    const double wanted = std::max(std::ceil(static_cast<double>(sample.work) / most),
                                   std::ceil(static_cast<double>(sample.tokens) / rows));
    const std::int64_t blocks = (sample.tokens + input.block - 1) / input.block;
    parts.push_back(static_cast<std::int32_t>(
        std::clamp(wanted, 1.0, static_cast<double>(std::min<std::int64_t>(input.ring, blocks)))));
  }
  return parts;
}

/// Time that a deal wastes, in a rank's mean work: imbalance beyond 2 %, and keys sent. The first shard of them costs a
/// tenth, about what a shard takes across nodes while little work hides it; further shards travel while ranks compute.
constexpr double kLevel = 1.02, kFirstShardCost = 0.1, kShardCost = 0.02;

double penalty(double imbalance, double sent) {
  return std::max(0.0, imbalance - kLevel) + kFirstShardCost * std::min(sent, 1.0) +
         kShardCost * std::max(0.0, sent - 1.0);
}

/// The same of the tiles that a placement really computes and the keys that it really sends.
double measured_penalty(const PlacementInput& input, std::span<const OwnedRange> ranges) {
  const std::vector<Piece> pieces = to_pieces(ranges, input.ring);
  const auto ring = static_cast<std::size_t>(input.ring);
  std::vector<std::int64_t> cost(ring, 0);
  std::int64_t sent = 0, layers = 0, all = 0;
  for (const LayerVisibility& layer : input.layers) {
    const PlacedRanks ranks =
        place_ranks(pieces, input.ring, input.order, layer.visibility, input.block, input.threads);
    const std::vector<PairDemand> demand = measure_demand(ranks, input.block, input.threads);
    layers += layer.count;
    for (std::size_t i = 0; i < demand.size(); ++i) {
      cost[i / ring] += tile_cost(demand[i], input.partial_cost) * layer.count;
      all += tile_cost(demand[i], input.partial_cost) * layer.count;
      if (i / ring != i % ring) sent += demand[i].needed_rows * layer.count;
    }
  }
  const double mean = static_cast<double>(all) / input.ring;
  return penalty(static_cast<double>(*std::max_element(cost.begin(), cost.end())) / mean,
                 static_cast<double>(sent) / static_cast<double>(layers * input.order.num_tokens));
}

/// Deals tried for one layout, and the best of them.
class Search {
 public:
  explicit Search(const PlacementInput& input)
      : input_(input),
        samples_(measure_samples(input)),
        profile_(input),
        small_(input.order.num_tokens < kSmallShard * input.block * input.ring),
        deals_left_(std::max(kFewestDeals, kDealsOfARank / input.ring)) {}

  [[nodiscard]] std::vector<OwnedRange> run() {
    constexpr double kShares[] = {1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125};
    for (const double share : kShares) {
      const double before = penalty_;
      if (try_share(split_by_share(input_, samples_, share))) break;
      if (penalty_ >= before) break;
    }
    return std::move(best_);
  }

 private:
  /// Adds parts to the busiest rank's heaviest sample while that helps. True when a deal is good enough to look no
  /// further: level within 2 %, and a hundredth of a ring's keys; or when no deals are left.
  bool try_share(std::vector<std::int32_t> parts) {
    constexpr double kFewKeys = 0.01;
    constexpr int kPatience = 4;
    for (int idle = 0; idle < kPatience; ++idle) {
      if (deals_left_-- == 0) return true;
      const SampleDealer dealer(input_, samples_, profile_, parts);
      double of_deal = penalty(dealer.imbalance(), dealer.sent());
      if (of_deal < penalty_ && small_) of_deal = measured_penalty(input_, dealer.ranges());
      if (of_deal < penalty_) {
        best_ = dealer.ranges();
        penalty_ = of_deal;
        idle = 0;
      }
      if (of_deal <= penalty(kLevel, kFewKeys * input_.ring)) return true;
      std::int32_t& heaviest = parts[static_cast<std::size_t>(dealer.heaviest_of_busiest())];
      if (heaviest >= input_.ring) return false;
      ++heaviest;
    }
    return false;
  }

  /// Rings of up to 128 ranks do not come to the end of these; a deal among a thousand takes tenths of a second.
  static constexpr int kDealsOfARank = 8192, kFewestDeals = 6;

  /// In blocks: below this, where samples lie within blocks moves a rank's tiles by more than the deal does, and deals
  /// are measured instead of estimated.
  static constexpr std::int64_t kSmallShard = 1024;

  const PlacementInput& input_;
  std::vector<DealtSample> samples_;
  WorkProfile profile_;
  bool small_;
  int deals_left_;
  std::vector<OwnedRange> best_;
  double penalty_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<OwnedRange> place_dealt(const PlacementInput& input) {
  return input.order.num_tokens == 0 ? std::vector<OwnedRange>{} : Search(input).run();
}

}  // namespace marble

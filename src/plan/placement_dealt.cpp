// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The dealt placement: whole samples go to ranks so that tokens and work are equal (sample_dealer.hpp). A sample
// heavier than a share of a rank's mean is split into parts. Smaller shares, and one more part for what the busiest
// rank holds, are tried while the work is not level; the best deal weighs imbalance against the keys that splits send.

#include "plan/placement.hpp"
#include "plan/sample_dealer.hpp"

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

constexpr double kLevel = 1.02;  // imbalance that is good enough

/// Imbalance beyond that costs its time, five times over, since every layer waits for it; a shard of keys sent costs a
/// fiftieth of a rank's work, since keys travel while ranks compute.
double penalty_of(const SampleDealer& dealer) {
  constexpr double kImbalance = 5.0, kSent = 0.02;
  return kImbalance * std::max(0.0, dealer.imbalance() - kLevel) + kSent * dealer.sent();
}

/// Deals tried for one layout, and the best of them.
class Search {
 public:
  explicit Search(const PlacementInput& input) : input_(input), samples_(measure_samples(input)), profile_(input) {}

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
  /// further: level within 2 %, and a hundredth of a ring's keys.
  bool try_share(std::vector<std::int32_t> parts) {
    constexpr double kFewKeys = 0.01;
    constexpr int kPatience = 4;
    for (int idle = 0; idle < kPatience; ++idle) {
      const SampleDealer dealer(input_, samples_, profile_, parts);
      const double penalty = penalty_of(dealer);
      if (penalty < penalty_) {
        best_ = dealer.ranges();
        penalty_ = penalty;
        idle = 0;
      }
      if (dealer.imbalance() <= kLevel && dealer.sent() <= kFewKeys * input_.ring) return true;
      std::int32_t& heaviest = parts[static_cast<std::size_t>(dealer.heaviest_of_busiest())];
      if (heaviest >= input_.ring) return false;
      ++heaviest;
    }
    return false;
  }

  const PlacementInput& input_;
  std::vector<DealtSample> samples_;
  WorkProfile profile_;
  std::vector<OwnedRange> best_;
  double penalty_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<OwnedRange> place_dealt(const PlacementInput& input) {
  return input.order.num_tokens == 0 ? std::vector<OwnedRange>{} : Search(input).run();
}

}  // namespace marble

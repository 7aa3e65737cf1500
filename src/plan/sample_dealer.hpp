// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Deals samples to ranks: one try of the dealt placement, for given numbers of parts.
//
//   1. Samples, heaviest first, go where work and tokens are most wanted; the parts of one to different ranks.
//   2. Swaps between ranks level what is left.
//   3. Ranks beyond their rows give the head of their least dense ranges to ranks with room: a causal head reads
//      nothing of the rest, so a cut costs few bytes.
//   4. The busiest rank trades the tail of a dense range for as many tokens of a light one of a rank with less work,
//      best one that stores some of the sample already: it reads the sample's keys anyway.

#include "plan/placement.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// A sample of the canonical order. Its work: legal pairs, and the pairs that its tiles compute beyond them.
struct DealtSample {
  std::int64_t canonical = 0;
  std::int64_t tokens = 0;
  std::int64_t work = 0;
};

[[nodiscard]] std::vector<DealtSample> measure_samples(const PlacementInput& input);

/// Work of the queries below a canonical index, linear inside blocks: how a sample's work is spread along it.
class WorkProfile {
 public:
  explicit WorkProfile(const PlacementInput& input) : block_(input.block), below_{0.0} {
    for (const std::int64_t work : block_work(input)) below_.push_back(below_.back() + static_cast<double>(work));
    below_.push_back(below_.back());
  }

  [[nodiscard]] double below(std::int64_t canonical) const {
    const auto b = static_cast<std::size_t>(canonical / block_);
    const double inside = static_cast<double>(canonical % block_) / static_cast<double>(block_);
    return below_[b] + inside * (below_[b + 1] - below_[b]);
  }

  /// Work of [canonical, canonical + length), part of `sample`, whose own work is exact.
  [[nodiscard]] std::int64_t share(const DealtSample& sample, std::int64_t canonical, std::int64_t length) const {
    const double whole = below(sample.canonical + sample.tokens) - below(sample.canonical);
    const double part = below(canonical + length) - below(canonical);
    return whole <= 0.0 ? 0 : static_cast<std::int64_t>(static_cast<double>(sample.work) * std::min(1.0, part / whole));
  }

 private:
  std::int64_t block_;
  std::vector<double> below_;
};

/// One deal.
class SampleDealer {
 public:
  /// `parts`: of each sample.
  SampleDealer(const PlacementInput& input, const std::vector<DealtSample>& samples, const WorkProfile& profile,
               std::span<const std::int32_t> parts)
      : input_(input),
        samples_(samples),
        profile_(profile),
        rows_(ring_rows(input.order.num_tokens, input.ring, input.block)) {
    const auto ring = static_cast<std::size_t>(input.ring);
    std::int64_t work = 0;
    for (const DealtSample& sample : samples) work += sample.work;
    mean_work_ = std::max(1.0, static_cast<double>(work) / input.ring);
    mean_tokens_ = std::max(1.0, static_cast<double>(input.order.num_tokens) / input.ring);
    work_.assign(ring, 0);
    tokens_.assign(ring, 0);
    held_.resize(ring);
    deal(parts);
    level();
    list_ranges();
    fit();
    trade();
  }

  /// Busiest rank over mean, in work.
  [[nodiscard]] double imbalance() const {
    return static_cast<double>(*std::max_element(work_.begin(), work_.end())) / mean_work_;
  }
  /// Keys that splits send, over all tokens.
  [[nodiscard]] double sent() const;
  /// The sample of the busiest rank's heaviest item.
  [[nodiscard]] std::int32_t heaviest_of_busiest() const;
  /// In ascending canonical index.
  [[nodiscard]] std::vector<OwnedRange> ranges() const;

 private:
  /// A whole sample, or one part of a split one.
  struct Item {
    std::int32_t sample = 0;
    std::int32_t part = 0;
    std::int32_t parts = 1;
    std::int64_t tokens = 0;
    std::int64_t work = 0;
  };

  /// A range of a sample: what `fit` and `trade` cut.
  struct Held {
    OwnedRange range;
    std::int32_t sample = 0;
    std::int64_t work = 0;

    [[nodiscard]] double density() const { return static_cast<double>(work) / static_cast<double>(range.length); }
  };

  /// A range that the busiest rank may cut, and the rank that takes the part.
  struct Offer {
    std::size_t idle = 0;
    std::size_t range = 0;
    double score = 0.0;
  };

  void deal(std::span<const std::int32_t> parts);
  void place(const std::vector<Item>& parts);
  void give(std::size_t rank, const Item& item, int sign);
  void level();
  bool level_rank(std::size_t rank);
  void list_ranges();
  void fit();
  void trade();
  bool trade_once(std::size_t busy);
  [[nodiscard]] double surplus(std::size_t busy, std::size_t idle) const;
  [[nodiscard]] Offer best_offer(std::size_t busy) const;
  [[nodiscard]] double keys_of_cut(const Held& held, std::size_t to) const;
  void move(std::size_t from, std::size_t range, bool tail, std::int64_t length, std::size_t to);
  [[nodiscard]] std::ptrdiff_t lightest_range(std::size_t rank, std::int64_t shortest) const;
  [[nodiscard]] double strain(std::size_t rank, std::int64_t work, std::int64_t tokens) const;
  [[nodiscard]] bool holds(std::size_t rank, std::int32_t sample) const;
  [[nodiscard]] std::vector<std::size_t> partners(std::size_t rank) const;
  [[nodiscard]] std::vector<std::size_t> swappable(std::size_t rank, std::size_t other) const;

  /// Other ranks that a rank may swap with in one turn, and items of each side. A turn tries at most 2^17 swaps, and in
  /// a ring of more than 32 ranks, which takes more turns, so many fewer.
  [[nodiscard]] std::size_t num_partners() const { return std::clamp<std::size_t>(1024 / work_.size(), 8, 32); }
  [[nodiscard]] std::size_t num_tries() const {
    const std::size_t swaps = std::min<std::size_t>(1 << 17, (1 << 22) / work_.size());
    return static_cast<std::size_t>(std::sqrt(static_cast<double>(swaps) / static_cast<double>(num_partners())));
  }

  const PlacementInput& input_;
  const std::vector<DealtSample>& samples_;
  const WorkProfile& profile_;
  std::int64_t rows_;
  double mean_work_ = 1.0, mean_tokens_ = 1.0;
  std::vector<std::int64_t> work_, tokens_;          // by ring rank
  std::vector<std::vector<Item>> held_;              // by ring rank
  std::vector<std::vector<Held>> ranges_;            // by ring rank
  std::vector<std::vector<std::size_t>> stored_by_;  // ring ranks of each sample's ranges
  double cut_keys_ = 0.0;                            // keys that `fit` and `trade` make travel
};

}  // namespace marble

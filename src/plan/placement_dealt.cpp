// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The dealt placement: whole samples go to ranks so that tokens and work are equal.
//
//   1. A sample heavier than a share of a rank's mean is split into parts, zigzag.
//   2. Samples, heaviest first, go where work and tokens are most wanted.
//   3. Swaps between ranks level what is left.
//   4. Ranks beyond their rows give the head of their least dense samples to ranks with room: a causal head reads
//      nothing of the rest, so a cut costs few bytes.
// Smaller shares, and one more part for what the busiest rank holds, are tried while the work is not level; the best
// deal weighs imbalance against the keys that splits send.

#include "plan/placement.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace marble {
namespace {

struct Sample {
  std::int64_t canonical = 0;
  std::int64_t tokens = 0;
  std::int64_t work = 0;
};

/// A whole sample, or one part of a split one.
struct Item {
  std::int32_t sample = 0;
  std::int32_t part = 0;
  std::int32_t parts = 1;
  std::int64_t tokens = 0;
  std::int64_t work = 0;
};

std::vector<Sample> measure_samples(const PlacementInput& input) {
  std::vector<Sample> samples;
  const CanonicalOrder& order = input.order;
  for (std::int64_t s = 0; s < order.num_samples(); ++s) {
    const std::span<const CanonicalSpan> spans = order.sample(s);
    Sample sample{spans.front().canonical, spans.back().canonical_end() - spans.front().canonical, 0};
    const std::int64_t first = order.sample_begin[static_cast<std::size_t>(s)];
    for (const LayerVisibility& layer : input.layers) {
      std::int64_t pairs = 0;
      for (std::size_t i = 0; i < spans.size(); ++i)
        for (const VisibleEntry& entry : layer.visibility.of_span(first + static_cast<std::int64_t>(i)))
          pairs += count_pairs(entry);
      sample.work += pairs * layer.count;
    }
    samples.push_back(sample);
  }
  return samples;
}

/// How a sample is split: into units of whole blocks, as equal as they allow, dealt to the parts in rounds, every other
/// round reversed. Eight rounds level modes whose work is not linear along the sample.
class SampleCut {
 public:
  SampleCut(const Sample& sample, std::int32_t parts, std::int64_t block)
      : tokens_(sample.tokens), block_(block), blocks_((sample.tokens + block - 1) / block), parts_(parts) {
    const std::int64_t rounds = std::clamp<std::int64_t>(blocks_ / parts, 1, 8);
    units_ = (rounds > 1 ? rounds / 2 * 2 : 1) * parts;
  }

  /// fn(part, begin, length) for every unit, relative to the sample.
  template <typename Fn>
  void for_each_unit(Fn&& fn) const {
    for (std::int64_t u = 0; u < units_; ++u) {
      const std::int64_t round = u / parts_, turn = u % parts_;
      fn(static_cast<std::int32_t>(round % 2 == 0 ? turn : parts_ - 1 - turn), border(u), border(u + 1) - border(u));
    }
  }

 private:
  [[nodiscard]] std::int64_t border(std::int64_t unit) const {
    return std::min(blocks_ * unit / units_ * block_, tokens_);
  }

  std::int64_t tokens_, block_, blocks_, units_ = 1;
  std::int32_t parts_;
};

class Dealer {
 public:
  /// `parts`: of each sample.
  Dealer(const PlacementInput& input, const std::vector<Sample>& samples, std::span<const std::int32_t> parts)
      : input_(input), samples_(samples), rows_(ring_rows(input.order.num_tokens, input.ring, input.block)) {
    const auto ring = static_cast<std::size_t>(input.ring);
    std::int64_t work = 0;
    for (const Sample& sample : samples) work += sample.work;
    mean_work_ = std::max(1.0, static_cast<double>(work) / input.ring);
    mean_tokens_ = std::max(1.0, static_cast<double>(input.order.num_tokens) / input.ring);
    work_.assign(ring, 0);
    tokens_.assign(ring, 0);
    held_.resize(ring);
    deal(parts);
    level();
    list_ranges();
    fit();
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
  /// A stored range, and the work of its sample or part: what `fit` cuts.
  struct Held {
    OwnedRange range;
    std::int64_t work = 0, tokens = 0;
  };

  void deal(std::span<const std::int32_t> parts);
  void place(const std::vector<Item>& parts);
  void give(std::size_t rank, const Item& item, int sign);
  void level();
  bool level_rank(std::size_t rank);
  void list_ranges();
  void fit();
  [[nodiscard]] double strain(std::size_t rank, std::int64_t work, std::int64_t tokens) const;
  [[nodiscard]] bool holds(std::size_t rank, std::int32_t sample) const;
  [[nodiscard]] std::vector<std::size_t> swappable(std::size_t rank, std::size_t other) const;

  const PlacementInput& input_;
  const std::vector<Sample>& samples_;
  std::int64_t rows_;
  double mean_work_ = 1.0, mean_tokens_ = 1.0;
  std::vector<std::int64_t> work_, tokens_;  // by ring rank
  std::vector<std::vector<Item>> held_;      // by ring rank
  std::vector<Held> ranges_;
};

void Dealer::give(std::size_t rank, const Item& item, int sign) {
  work_[rank] += sign * item.work;
  tokens_[rank] += sign * item.tokens;
}

void Dealer::deal(std::span<const std::int32_t> parts_of) {
  std::vector<std::vector<Item>> items;
  for (std::size_t s = 0; s < samples_.size(); ++s) {
    const Sample& sample = samples_[s];
    const std::int32_t parts = parts_of[s];
    std::vector<Item>& of_sample = items.emplace_back(static_cast<std::size_t>(parts));
    for (std::int32_t p = 0; p < parts; ++p)
      of_sample[static_cast<std::size_t>(p)] = {static_cast<std::int32_t>(s), p, parts, 0, sample.work / parts};
    SampleCut(sample, parts, input_.block).for_each_unit([&](std::int32_t part, std::int64_t, std::int64_t length) {
      of_sample[static_cast<std::size_t>(part)].tokens += length;
    });
  }
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a[0].work > b[0].work; });
  for (const std::vector<Item>& parts : items) place(parts);
}

/// Each part to another rank: those that want the part's work and tokens most, among those with room while there are
/// any.
void Dealer::place(const std::vector<Item>& parts) {
  const double work = static_cast<double>(parts[0].work) / mean_work_;
  const double tokens = static_cast<double>(parts[0].tokens) / mean_tokens_;
  std::vector<std::pair<double, std::size_t>> wishes;
  for (std::size_t r = 0; r < work_.size(); ++r) {
    const double wants_work = 1.0 - static_cast<double>(work_[r]) / mean_work_;
    const double wants_tokens = 1.0 - static_cast<double>(tokens_[r]) / mean_tokens_;
    const bool room = tokens_[r] + parts[0].tokens <= rows_;
    wishes.emplace_back(-(room ? wants_work * work + wants_tokens * tokens : wants_tokens - 1e6), r);
  }
  std::partial_sort(wishes.begin(), wishes.begin() + static_cast<std::ptrdiff_t>(parts.size()), wishes.end());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::size_t rank = wishes[p].second;
    give(rank, parts[p], 1);
    held_[rank].push_back(parts[p]);
  }
}

/// How far a rank is from the means, squared, after `work` and `tokens` are added.
double Dealer::strain(std::size_t rank, std::int64_t work, std::int64_t tokens) const {
  const double w = static_cast<double>(work_[rank] + work) / mean_work_ - 1.0;
  const double t = static_cast<double>(tokens_[rank] + tokens) / mean_tokens_ - 1.0;
  return w * w + t * t;
}

bool Dealer::holds(std::size_t rank, std::int32_t sample) const {
  return std::any_of(held_[rank].begin(), held_[rank].end(), [&](const Item& item) { return item.sample == sample; });
}

/// Items of the rank that `other` may take (it holds no part of the same sample), spread over the rank's weights when
/// they are many: about 2^17 swaps are tried against all ranks.
std::vector<std::size_t> Dealer::swappable(std::size_t rank, std::size_t other) const {
  const auto tries = static_cast<std::size_t>(std::sqrt(131072.0 / static_cast<double>(work_.size()))) + 1;
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < held_[rank].size(); ++i)
    if (held_[rank][i].parts == 1 || !holds(other, held_[rank][i].sample)) free.push_back(i);
  if (free.size() <= tries) return free;
  std::vector<std::size_t> spread;
  for (std::size_t i = 0; i < tries; ++i) spread.push_back(free[i * free.size() / tries]);
  return spread;
}

/// The best exchange of one item, or none, of `rank` for one, or none, of another rank.
bool Dealer::level_rank(std::size_t rank) {
  struct Swap {
    double gain = 1e-9;
    std::size_t other = 0;
    std::ptrdiff_t mine = -1, theirs = -1;  // -1: none
  } best;
  for (std::size_t other = 0; other < work_.size(); ++other) {
    if (other == rank) continue;
    const std::vector<std::size_t> mine = swappable(rank, other), theirs = swappable(other, rank);
    const double before = strain(rank, 0, 0) + strain(other, 0, 0);
    for (std::size_t m = 0; m <= mine.size(); ++m)
      for (std::size_t t = 0; t <= theirs.size(); ++t) {
        const Item none{};
        const Item& a = m < mine.size() ? held_[rank][mine[m]] : none;
        const Item& b = t < theirs.size() ? held_[other][theirs[t]] : none;
        const double gain = before - strain(rank, b.work - a.work, b.tokens - a.tokens) -
                            strain(other, a.work - b.work, a.tokens - b.tokens);
        if (gain > best.gain)
          best = {gain, other, m < mine.size() ? static_cast<std::ptrdiff_t>(mine[m]) : -1,
                  t < theirs.size() ? static_cast<std::ptrdiff_t>(theirs[t]) : -1};
      }
  }
  if (best.mine < 0 && best.theirs < 0) return false;
  const auto take = [&](std::size_t from, std::size_t to, std::ptrdiff_t index) {
    const Item item = held_[from][static_cast<std::size_t>(index)];
    held_[from].erase(held_[from].begin() + index);
    give(from, item, -1);
    give(to, item, 1);
    return item;
  };
  std::vector<Item> to_other, to_rank;
  if (best.mine >= 0) to_other.push_back(take(rank, best.other, best.mine));
  if (best.theirs >= 0) to_rank.push_back(take(best.other, rank, best.theirs));
  held_[best.other].insert(held_[best.other].end(), to_other.begin(), to_other.end());
  held_[rank].insert(held_[rank].end(), to_rank.begin(), to_rank.end());
  return true;
}

void Dealer::level() {
  constexpr double kSettled = 1e-6;  // within a thousandth of both means
  const std::size_t ring = work_.size();
  std::vector<char> settled(ring, 0);
  for (std::size_t turn = 0; turn < 6 * ring; ++turn) {
    std::size_t worst = ring;
    for (std::size_t r = 0; r < ring; ++r)
      if (!settled[r] && (worst == ring || strain(r, 0, 0) > strain(worst, 0, 0))) worst = r;
    if (worst == ring || strain(worst, 0, 0) < kSettled) return;
    if (level_rank(worst))
      std::fill(settled.begin(), settled.end(), 0);
    else
      settled[worst] = 1;
  }
}

void Dealer::list_ranges() {
  for (std::size_t r = 0; r < held_.size(); ++r)
    for (const Item& item : held_[r]) {
      const Sample& sample = samples_[static_cast<std::size_t>(item.sample)];
      const auto rank = static_cast<std::int32_t>(r);
      SampleCut(sample, item.parts, input_.block)
          .for_each_unit([&](std::int32_t part, std::int64_t begin, std::int64_t length) {
            if (part == item.part)
              ranges_.push_back({{sample.canonical + begin, length, rank}, item.work, item.tokens});
          });
    }
}

/// Ranks beyond their rows give heads of their least dense ranges to the ranks with most room. The head's work is taken
/// as that of a causal one, the square of its share: close enough for any mode, as heads are short.
void Dealer::fit() {
  for (std::size_t from = 0; from < tokens_.size(); ++from)
    while (tokens_[from] > rows_) {
      const auto to = static_cast<std::size_t>(std::min_element(tokens_.begin(), tokens_.end()) - tokens_.begin());
      ensure(tokens_[to] < rows_, "no rank has room for {} tokens", tokens_[from] - rows_);
      Held* lightest = nullptr;
      for (Held& held : ranges_)
        if (held.range.ring_rank == static_cast<std::int32_t>(from) && held.range.length > 0 &&
            (lightest == nullptr || held.work * lightest->tokens < lightest->work * held.tokens))
          lightest = &held;
      ensure(lightest != nullptr, "rank {} holds {} tokens in no range", from, tokens_[from]);
      OwnedRange& rest = lightest->range;
      const std::int64_t length = std::min({tokens_[from] - rows_, rows_ - tokens_[to], rest.length});
      const double share = static_cast<double>(length) / static_cast<double>(lightest->tokens);
      const Item head{.tokens = length,
                      .work = static_cast<std::int64_t>(share * share * static_cast<double>(lightest->work))};
      give(from, head, -1);
      give(to, head, 1);
      const OwnedRange moved{rest.canonical, length, static_cast<std::int32_t>(to)};
      rest.canonical += length;
      rest.length -= length;
      ranges_.push_back({moved, head.work, length});
    }
}

double Dealer::sent() const {
  double sum = 0.0;
  for (const std::vector<Item>& items : held_)
    for (const Item& item : items) sum += static_cast<double>(item.tokens) * (item.parts - 1);
  return sum / static_cast<double>(std::max<std::int64_t>(1, input_.order.num_tokens));
}

std::int32_t Dealer::heaviest_of_busiest() const {
  const auto busiest = static_cast<std::size_t>(std::max_element(work_.begin(), work_.end()) - work_.begin());
  const auto heaviest = std::max_element(held_[busiest].begin(), held_[busiest].end(),
                                         [](const Item& a, const Item& b) { return a.work < b.work; });
  return heaviest == held_[busiest].end() ? 0 : heaviest->sample;
}

std::vector<OwnedRange> Dealer::ranges() const {
  std::vector<OwnedRange> result;
  for (const Held& held : ranges_) result.push_back(held.range);
  std::sort(result.begin(), result.end(), [](const OwnedRange& a, const OwnedRange& b) {
    return std::pair(a.canonical, a.length) < std::pair(b.canonical, b.length);
  });
  return result;
}

/// The fewest parts, each of at most `share` of a rank's mean work and no more tokens than a rank's rows.
std::vector<std::int32_t> split_by_share(const PlacementInput& input, const std::vector<Sample>& samples,
                                         double share) {
  double work = 0.0;
  for (const Sample& sample : samples) work += static_cast<double>(sample.work);
  const double most = std::max(1.0, share * work / input.ring);
  const auto rows = static_cast<double>(ring_rows(input.order.num_tokens, input.ring, input.block));
  std::vector<std::int32_t> parts;
  for (const Sample& sample : samples) {
    const double wanted = std::max(std::ceil(static_cast<double>(sample.work) / most),
                                   std::ceil(static_cast<double>(sample.tokens) / rows));
    const std::int64_t blocks = (sample.tokens + input.block - 1) / input.block;
    parts.push_back(static_cast<std::int32_t>(
        std::clamp(wanted, 1.0, static_cast<double>(std::min<std::int64_t>(input.ring, blocks)))));
  }
  return parts;
}

/// Imbalance beyond 2 % costs its time; keys sent cost a fiftieth of it a shard, since they travel while ranks compute.
double penalty_of(const Dealer& dealer) {
  constexpr double kFree = 1.02, kImbalance = 5.0, kSent = 0.02;
  return kImbalance * std::max(0.0, dealer.imbalance() - kFree) + kSent * dealer.sent() + 1e-9;
}

}  // namespace

std::vector<OwnedRange> place_dealt(const PlacementInput& input) {
  constexpr double kLevel = 1.005;
  constexpr double kShares[] = {1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125};
  constexpr int kMoreParts = 16;
  const std::vector<Sample> samples = measure_samples(input);
  std::vector<OwnedRange> best;
  double best_penalty = std::numeric_limits<double>::infinity();
  for (const double share : kShares) {
    std::vector<std::int32_t> parts = split_by_share(input, samples, share);
    for (int more = 0; more < kMoreParts && best_penalty > 0.0; ++more) {
      const Dealer dealer(input, samples, parts);
      const bool level = dealer.imbalance() <= kLevel;
      const double penalty = level ? 0.0 : penalty_of(dealer);
      if (penalty < best_penalty) {
        best = dealer.ranges();
        best_penalty = penalty;
      }
      std::int32_t& heaviest = parts[static_cast<std::size_t>(dealer.heaviest_of_busiest())];
      if (level || heaviest >= input.ring) break;
      ++heaviest;
    }
  }
  return best;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/sample_dealer.hpp"

#include "marble/error.hpp"

#include <cmath>

namespace marble {
namespace {

/// How a sample is split: into units of whole blocks, as equal as they allow, dealt to the parts in rounds, every other
/// round reversed. Eight rounds level modes whose work is not linear along the sample.
class SampleCut {
 public:
  SampleCut(const DealtSample& sample, std::int32_t parts, std::int64_t block)
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

}  // namespace

/// Work of each sample: its legal pairs, and the pairs that its tiles compute beyond them. A causal sample of x blocks'
/// length, at any offset, touches x^2 / 2 + 3 x / 2 + 1 block pairs on average.
std::vector<DealtSample> measure_samples(const PlacementInput& input) {
  std::vector<DealtSample> samples;
  const CanonicalOrder& order = input.order;
  for (std::int64_t s = 0; s < order.num_samples(); ++s) {
    const std::span<const CanonicalSpan> spans = order.sample(s);
    DealtSample sample{spans.front().canonical, spans.back().canonical_end() - spans.front().canonical, 0};
    const std::int64_t first = order.sample_begin[static_cast<std::size_t>(s)];
    for (const LayerVisibility& layer : input.layers) {
      std::int64_t pairs = 0;
      for (std::size_t i = 0; i < spans.size(); ++i)
        for (const VisibleEntry& entry : layer.visibility.of_span(first + static_cast<std::int64_t>(i)))
          pairs += count_pairs(entry);
      const std::int64_t waste = (3 * sample.tokens / 2 + input.block) * input.block;
      sample.work += (pairs + waste) * layer.count;
    }
    samples.push_back(sample);
  }
  return samples;
}

void SampleDealer::give(std::size_t rank, const Item& item, int sign) {
  work_[rank] += sign * item.work;
  tokens_[rank] += sign * item.tokens;
}

void SampleDealer::deal(std::span<const std::int32_t> parts_of) {
  std::vector<std::vector<Item>> items;
  for (std::size_t s = 0; s < samples_.size(); ++s) {
    const DealtSample& sample = samples_[s];
    const std::int32_t parts = parts_of[s];
    std::vector<Item>& of_sample = items.emplace_back(static_cast<std::size_t>(parts));
    for (std::int32_t p = 0; p < parts; ++p)
      of_sample[static_cast<std::size_t>(p)] = {static_cast<std::int32_t>(s), p, parts, 0, 0};
    SampleCut(sample, parts, input_.block)
        .for_each_unit([&](std::int32_t part, std::int64_t begin, std::int64_t length) {
          of_sample[static_cast<std::size_t>(part)].tokens += length;
          of_sample[static_cast<std::size_t>(part)].work += profile_.share(sample, sample.canonical + begin, length);
        });
  }
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a[0].work > b[0].work; });
  for (const std::vector<Item>& parts : items) place(parts);
}

/// Each part to another rank: those that want the part's work and tokens most, among those with room while there are
/// any.
void SampleDealer::place(const std::vector<Item>& parts) {
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
double SampleDealer::strain(std::size_t rank, std::int64_t work, std::int64_t tokens) const {
  const double w = static_cast<double>(work_[rank] + work) / mean_work_ - 1.0;
  const double t = static_cast<double>(tokens_[rank] + tokens) / mean_tokens_ - 1.0;
  return w * w + t * t;
}

bool SampleDealer::holds(std::size_t rank, std::int32_t sample) const {
  return std::any_of(held_[rank].begin(), held_[rank].end(), [&](const Item& item) { return item.sample == sample; });
}

/// Items of the rank that `other` may take (it holds no part of the same sample), spread over the rank's weights when
/// they are many: about 2^17 swaps are tried against all ranks.
std::vector<std::size_t> SampleDealer::swappable(std::size_t rank, std::size_t other) const {
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
bool SampleDealer::level_rank(std::size_t rank) {
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

void SampleDealer::level() {
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

void SampleDealer::list_ranges() {
  stored_by_.resize(samples_.size());
  for (std::size_t r = 0; r < held_.size(); ++r)
    for (const Item& item : held_[r]) {
      const DealtSample& sample = samples_[static_cast<std::size_t>(item.sample)];
      const auto rank = static_cast<std::int32_t>(r);
      SampleCut(sample, item.parts, input_.block)
          .for_each_unit([&](std::int32_t part, std::int64_t begin, std::int64_t length) {
            if (part != item.part || length == 0) return;
            ranges_.push_back({{sample.canonical + begin, length, rank},
                               item.sample,
                               profile_.share(sample, sample.canonical + begin, length)});
            stored_by_[static_cast<std::size_t>(item.sample)].push_back(rank);
          });
    }
}

/// Keys that travel when `to` takes a part of the range: the sample's, unless `to` already stores, and reads, some of
/// it.
double SampleDealer::keys_of_cut(const Held& held, std::size_t to) const {
  const std::vector<std::int32_t>& ranks = stored_by_[static_cast<std::size_t>(held.sample)];
  const bool stores = std::find(ranks.begin(), ranks.end(), static_cast<std::int32_t>(to)) != ranks.end();
  return stores ? 0.0 : static_cast<double>(samples_[static_cast<std::size_t>(held.sample)].tokens);
}

/// Gives the head or the tail of a range to another rank.
void SampleDealer::move(std::size_t held, bool tail, std::int64_t length, std::size_t to) {
  Held& rest = ranges_[held];
  const auto from = static_cast<std::size_t>(rest.range.ring_rank);
  const DealtSample& sample = samples_[static_cast<std::size_t>(rest.sample)];
  const std::int64_t begin = tail ? rest.range.canonical + rest.range.length - length : rest.range.canonical;
  const std::int64_t work = length == rest.range.length ? rest.work : profile_.share(sample, begin, length);
  const Item moved{.tokens = length, .work = work};
  give(from, moved, -1);
  give(to, moved, 1);
  if (!tail) rest.range.canonical += length;
  rest.range.length -= length;
  rest.work -= work;
  cut_keys_ += std::min(tail ? keys_of_cut(rest, to) : static_cast<double>(length), keys_of_cut(rest, to));
  const Held part{{begin, length, static_cast<std::int32_t>(to)}, rest.sample, work};
  stored_by_[static_cast<std::size_t>(part.sample)].push_back(part.range.ring_rank);
  ranges_.push_back(part);
}

/// The range of a rank with the best score, -1 when none has one. score(held) is negative for ranges out of question.
template <typename Score>
std::ptrdiff_t SampleDealer::find_range(std::size_t rank, Score&& score) const {
  std::ptrdiff_t best = -1;
  double best_score = 0.0;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].range.ring_rank != static_cast<std::int32_t>(rank) || ranges_[i].range.length == 0) continue;
    const double of_range = score(ranges_[i]);
    if (of_range <= best_score) continue;
    best = static_cast<std::ptrdiff_t>(i);
    best_score = of_range;
  }
  return best;
}

void SampleDealer::fit() {
  for (std::size_t from = 0; from < tokens_.size(); ++from)
    while (tokens_[from] > rows_) {
      const auto to = static_cast<std::size_t>(std::min_element(tokens_.begin(), tokens_.end()) - tokens_.begin());
      const std::ptrdiff_t lightest = find_range(from, [](const Held& held) { return 1.0 / (1.0 + held.density()); });
      ensure(tokens_[to] < rows_ && lightest >= 0, "no rank has room for {} tokens", tokens_[from] - rows_);
      const std::int64_t length = ranges_[static_cast<std::size_t>(lightest)].range.length;
      move(static_cast<std::size_t>(lightest), false, std::min({tokens_[from] - rows_, rows_ - tokens_[to], length}),
           to);
    }
}

/// The work that `busy` may give to `idle` before one of them is level.
double SampleDealer::surplus(std::size_t busy, std::size_t idle) const {
  return std::min(static_cast<double>(work_[busy]) - mean_work_, mean_work_ - static_cast<double>(work_[idle]));
}

/// The range of `busy` that moves most work to `idle` for the keys that its cut sends.
SampleDealer::Offer SampleDealer::best_offer(std::size_t busy, std::size_t idle) const {
  Offer offer{.idle = idle};
  const double most = surplus(busy, idle);
  const auto score = [&](const Held& held) {
    if (held.range.length < input_.block) return -1.0;
    return std::min(most, static_cast<double>(held.work)) /
           (keys_of_cut(held, idle) + static_cast<double>(input_.block));
  };
  offer.range = find_range(busy, score);
  if (offer.range >= 0) offer.score = score(ranges_[static_cast<std::size_t>(offer.range)]);
  return offer;
}

/// Evens out one of two ranks, for equal tokens: the dense range's tail for the head of a light one.
bool SampleDealer::trade_once(std::size_t busy) {
  Offer best;
  for (std::size_t idle = 0; idle < work_.size(); ++idle) {
    if (surplus(busy, idle) <= 0.0) continue;
    const Offer offer = best_offer(busy, idle);
    if (offer.score > best.score) best = offer;
  }
  if (best.range < 0) return false;
  const std::ptrdiff_t light = find_range(best.idle, [&](const Held& held) {
    return held.range.length >= input_.block ? 1.0 / (1.0 + held.density()) : -1.0;
  });
  if (light < 0) return false;
  const Held& heavy = ranges_[static_cast<std::size_t>(best.range)];
  const Held& thin = ranges_[static_cast<std::size_t>(light)];
  const double gain = heavy.density() - thin.density();
  if (gain <= 0.0) return false;
  const std::int64_t most = std::min(heavy.range.length, thin.range.length);
  const auto wanted = static_cast<std::int64_t>(surplus(busy, best.idle) / gain);
  const std::int64_t length = std::min(most, wanted / input_.block * input_.block);
  if (length <= 0) return false;
  move(static_cast<std::size_t>(best.range), true, length, best.idle);
  move(static_cast<std::size_t>(light), false, length, busy);
  return true;
}

void SampleDealer::trade() {
  // No finer than a few blocks' share of a rank: a trade sends the keys of a whole sample.
  const double level = 1.015 + 4.0 * static_cast<double>(input_.block) / mean_tokens_;
  for (std::size_t turn = 0; turn < 2 * work_.size() && imbalance() > level; ++turn)
    if (!trade_once(static_cast<std::size_t>(std::max_element(work_.begin(), work_.end()) - work_.begin()))) return;
}

double SampleDealer::sent() const {
  double sum = cut_keys_;
  for (const std::vector<Item>& items : held_)
    for (const Item& item : items) sum += static_cast<double>(item.tokens) * (item.parts - 1);
  return sum / static_cast<double>(std::max<std::int64_t>(1, input_.order.num_tokens));
}

std::int32_t SampleDealer::heaviest_of_busiest() const {
  const auto busiest = static_cast<std::size_t>(std::max_element(work_.begin(), work_.end()) - work_.begin());
  const auto heaviest = std::max_element(held_[busiest].begin(), held_[busiest].end(),
                                         [](const Item& a, const Item& b) { return a.work < b.work; });
  return heaviest == held_[busiest].end() ? 0 : heaviest->sample;
}

std::vector<OwnedRange> SampleDealer::ranges() const {
  std::vector<OwnedRange> result;
  for (const Held& held : ranges_) result.push_back(held.range);
  std::sort(result.begin(), result.end(), [](const OwnedRange& a, const OwnedRange& b) {
    return std::pair(a.canonical, a.length) < std::pair(b.canonical, b.length);
  });
  return result;
}

}  // namespace marble

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

/// The ranks whose work and tokens differ most from this rank's: between them a swap levels most.
std::vector<std::size_t> SampleDealer::partners(std::size_t rank) const {
  std::vector<std::pair<double, std::size_t>> distant;
  for (std::size_t other = 0; other < work_.size(); ++other) {
    if (other == rank) continue;
    const double w = static_cast<double>(work_[rank] - work_[other]) / mean_work_;
    const double t = static_cast<double>(tokens_[rank] - tokens_[other]) / mean_tokens_;
    distant.emplace_back(-(w * w + t * t), other);
  }
  const std::size_t count = std::min(num_partners(), distant.size());
  std::partial_sort(distant.begin(), distant.begin() + static_cast<std::ptrdiff_t>(count), distant.end());
  std::vector<std::size_t> partners;
  for (std::size_t i = 0; i < count; ++i) partners.push_back(distant[i].second);
  std::sort(partners.begin(), partners.end());
  return partners;
}

/// Items of the rank that `other` may take (it holds no part of the same sample), spread over the rank's weights when
/// they are many.
std::vector<std::size_t> SampleDealer::swappable(std::size_t rank, std::size_t other) const {
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < held_[rank].size(); ++i)
    if (held_[rank][i].parts == 1 || !holds(other, held_[rank][i].sample)) free.push_back(i);
  const std::size_t tries = std::min(num_tries(), free.size());
  for (std::size_t i = 0; i < tries; ++i) free[i] = free[i * free.size() / tries];
  free.resize(tries);
  return free;
}

/// The best exchange of one item, or none, of `rank` for one, or none, of another rank.
bool SampleDealer::level_rank(std::size_t rank) {
  struct Swap {
    double gain = 1e-9;
    std::size_t other = 0;
    std::ptrdiff_t mine = -1, theirs = -1;  // -1: none
  } best;
  for (const std::size_t other : partners(rank)) {
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
  ranges_.resize(held_.size());
  stored_by_.resize(samples_.size());
  for (std::size_t r = 0; r < held_.size(); ++r)
    for (const Item& item : held_[r]) {
      const DealtSample& sample = samples_[static_cast<std::size_t>(item.sample)];
      SampleCut(sample, item.parts, input_.block)
          .for_each_unit([&](std::int32_t part, std::int64_t begin, std::int64_t length) {
            if (part != item.part || length == 0) return;
            ranges_[r].push_back({{sample.canonical + begin, length, static_cast<std::int32_t>(r)},
                                  item.sample,
                                  profile_.share(sample, sample.canonical + begin, length)});
          });
      stored_by_[static_cast<std::size_t>(item.sample)].push_back(r);
    }
}

/// Keys that travel when `to` takes a part of the range: the sample's, unless `to` already stores, and reads, some of
/// it.
double SampleDealer::keys_of_cut(const Held& held, std::size_t to) const {
  const std::vector<std::size_t>& ranks = stored_by_[static_cast<std::size_t>(held.sample)];
  const bool stores = std::find(ranks.begin(), ranks.end(), to) != ranks.end();
  return stores ? 0.0 : static_cast<double>(samples_[static_cast<std::size_t>(held.sample)].tokens);
}

/// Gives the head or the tail of a range to another rank.
void SampleDealer::move(std::size_t from, std::size_t range, bool tail, std::int64_t length, std::size_t to) {
  Held& rest = ranges_[from][range];
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
  std::vector<std::size_t>& ranks = stored_by_[static_cast<std::size_t>(part.sample)];
  if (std::find(ranks.begin(), ranks.end(), to) == ranks.end()) ranks.push_back(to);
  if (rest.range.length == 0) ranges_[from].erase(ranges_[from].begin() + static_cast<std::ptrdiff_t>(range));
  ranges_[to].push_back(part);
}

/// The least dense range of a rank of at least `shortest` tokens, -1 when there is none.
std::ptrdiff_t SampleDealer::lightest_range(std::size_t rank, std::int64_t shortest) const {
  std::ptrdiff_t lightest = -1;
  const std::vector<Held>& ranges = ranges_[rank];
  for (std::size_t i = 0; i < ranges.size(); ++i)
    if (ranges[i].range.length >= shortest &&
        (lightest < 0 || ranges[i].density() < ranges[static_cast<std::size_t>(lightest)].density()))
      lightest = static_cast<std::ptrdiff_t>(i);
  return lightest;
}

void SampleDealer::fit() {
  for (std::size_t from = 0; from < tokens_.size(); ++from)
    while (tokens_[from] > rows_) {
      const auto to = static_cast<std::size_t>(std::min_element(tokens_.begin(), tokens_.end()) - tokens_.begin());
      const std::ptrdiff_t lightest = lightest_range(from, 1);
      ensure(tokens_[to] < rows_ && lightest >= 0, "no rank has room for {} tokens", tokens_[from] - rows_);
      const auto range = static_cast<std::size_t>(lightest);
      const std::int64_t length = ranges_[from][range].range.length;
      move(from, range, false, std::min({tokens_[from] - rows_, rows_ - tokens_[to], length}), to);
    }
}

/// The work that `busy` may give to `idle` before one of them is level.
double SampleDealer::surplus(std::size_t busy, std::size_t idle) const {
  return std::min(static_cast<double>(work_[busy]) - mean_work_, mean_work_ - static_cast<double>(work_[idle]));
}

/// The range of `busy` that moves most work for the keys that its cut sends: to a rank that stores some of its sample,
/// or to the idlest of those that do not.
SampleDealer::Offer SampleDealer::best_offer(std::size_t busy) const {
  Offer best;
  const auto idlest = static_cast<std::size_t>(std::min_element(work_.begin(), work_.end()) - work_.begin());
  for (std::size_t i = 0; i < ranges_[busy].size(); ++i) {
    const Held& held = ranges_[busy][i];
    if (held.range.length < input_.block) continue;
    const auto offer = [&](std::size_t idle) {
      const double score = std::min(surplus(busy, idle), static_cast<double>(held.work)) /
                           (keys_of_cut(held, idle) + static_cast<double>(input_.block));
      if (score > best.score) best = {idle, i, score};
    };
    offer(idlest);
    for (const std::size_t rank : stored_by_[static_cast<std::size_t>(held.sample)]) offer(rank);
  }
  return best;
}

/// Evens out one of two ranks, for equal tokens: the dense range's tail for the head of a light one.
bool SampleDealer::trade_once(std::size_t busy) {
  const Offer best = best_offer(busy);
  if (best.score <= 0.0) return false;
  const std::ptrdiff_t light = lightest_range(best.idle, input_.block);
  if (light < 0) return false;
  const Held& heavy = ranges_[busy][best.range];
  const Held& thin = ranges_[best.idle][static_cast<std::size_t>(light)];
  const double gain = heavy.density() - thin.density();
  if (gain <= 0.0) return false;
  const std::int64_t most = std::min(heavy.range.length, thin.range.length);
  const auto wanted = static_cast<std::int64_t>(surplus(busy, best.idle) / gain);
  const std::int64_t length = std::min(most, wanted / input_.block * input_.block);
  if (length <= 0) return false;
  move(busy, best.range, true, length, best.idle);
  move(best.idle, static_cast<std::size_t>(light), false, length, busy);
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
  for (const std::vector<Held>& ranges : ranges_)
    for (const Held& held : ranges) result.push_back(held.range);
  std::sort(result.begin(), result.end(), [](const OwnedRange& a, const OwnedRange& b) {
    return std::pair(a.canonical, a.length) < std::pair(b.canonical, b.length);
  });
  return result;
}

}  // namespace marble

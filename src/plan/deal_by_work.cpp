// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/deal_by_work.hpp"

#include <algorithm>
#include <numeric>

namespace marble {
namespace {

/// What ranks hold so far in a deal, and where the next block does least harm.
class Loads {
 public:
  Loads(std::int32_t ring, double all_queries, double all_keys)
      : query_load_(static_cast<std::size_t>(ring), 0.0),
        key_load_(query_load_.size(), 0.0),
        in_round_(query_load_.size(), 0),
        all_queries_(std::max(1.0, all_queries)),
        all_keys_(std::max(1.0, all_keys)) {}

  /// The rank, of those without a block of round `round`, whose squared loads grow least. Queries' work counts most:
  /// it is the whole pass of a rank; keys' work decides among blocks of almost equal queries' work.
  std::int32_t take(std::int64_t round, double query_work, double key_work) {
    constexpr double kQueryWeight = 32.0;
    std::size_t best = query_load_.size();
    double best_growth = 0.0;
    for (std::size_t r = 0; r < query_load_.size(); ++r) {
      if (in_round_[r] > round) continue;
      const double growth = kQueryWeight * query_work / all_queries_ * query_load_[r] / all_queries_ +
                            key_work / all_keys_ * key_load_[r] / all_keys_;
      if (best < query_load_.size() && growth >= best_growth) continue;
      best = r;
      best_growth = growth;
    }
    query_load_[best] += query_work;
    key_load_[best] += key_work;
    in_round_[best] = round + 1;
    return static_cast<std::int32_t>(best);
  }

 private:
  std::vector<double> query_load_, key_load_;
  std::vector<std::int64_t> in_round_;  // rounds that the rank has a block of
  double all_queries_, all_keys_;
};

double sum(std::span<const std::int64_t> work) {
  return static_cast<double>(std::accumulate(work.begin(), work.end(), std::int64_t{0}));
}

}  // namespace

std::vector<std::int32_t> deal_by_work(std::span<const std::int64_t> query_work, std::span<const std::int64_t> key_work,
                                       std::int32_t ring) {
  std::vector<std::int32_t> by_work(query_work.size());
  std::iota(by_work.begin(), by_work.end(), 0);
  std::stable_sort(by_work.begin(), by_work.end(), [&](std::int32_t a, std::int32_t b) {
    return query_work[static_cast<std::size_t>(a)] > query_work[static_cast<std::size_t>(b)];
  });
  Loads loads(ring, sum(query_work), sum(key_work));
  std::vector<std::int32_t> owners(query_work.size());
  for (std::size_t i = 0; i < by_work.size(); ++i) {
    const auto unit = static_cast<std::size_t>(by_work[i]);
    owners[unit] = loads.take(static_cast<std::int64_t>(i) / ring, static_cast<double>(query_work[unit]),
                              static_cast<double>(key_work[unit]));
  }
  return owners;
}

}  // namespace marble

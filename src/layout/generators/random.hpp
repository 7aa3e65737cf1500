// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Seeded random numbers, bit-identical on every platform: xoshiro256** seeded by splitmix64, integers only. Each sample
// of a pack draws from a stream of its own, so that sample k does not depend on how many tokens others took. A Random
// is a small value: a copy replays the same draws.
//
// Lognormals come from the 4,096 quantiles ((i + 1/2) / 4096) of the standard normal, so tails end at 3.67 sigma.
// Probabilities and sigmas are thousandths.

#include <array>
#include <cstdint>
#include <span>

namespace marble {

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream);

  [[nodiscard]] std::uint64_t next();
  /// Uniform in [0, count), for count in [1, 2^32); off uniform by less than count / 2^32.
  [[nodiscard]] std::int64_t below(std::int64_t count);
  /// Uniform in [low, high].
  [[nodiscard]] std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  [[nodiscard]] bool chance(std::int64_t thousandths) { return below(1000) < thousandths; }
  /// An index, with probability proportional to its weight.
  [[nodiscard]] std::size_t pick(std::span<const std::int64_t> weights);
  /// At least 1, with this mean, at most `limit`; `mean` in thousandths.
  [[nodiscard]] std::int64_t geometric(std::int64_t mean, std::int64_t limit);
  /// A standard normal in fixed point.
  [[nodiscard]] std::int64_t normal();
  /// median * exp(sigma * normal), clipped to [low, high].
  [[nodiscard]] std::int64_t lognormal(std::int64_t median, std::int64_t sigma, std::int64_t low, std::int64_t high);
  /// low * exp(uniform * ln(2^octaves)): equally likely in each octave of [low, low * 2^octaves).
  [[nodiscard]] std::int64_t log_uniform(std::int64_t low, std::int64_t octaves_thousandths);

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace marble

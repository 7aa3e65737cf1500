// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/random.hpp"

#include "layout/generators/fixed_point.hpp"

#include <algorithm>
#include <bit>

namespace marble {
namespace {

constexpr std::uint64_t splitmix64(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

constexpr std::int64_t kNumQuantiles = 4096;
using UpperQuantiles = std::array<std::int64_t, kNumQuantiles / 2>;

/// The quantiles above the median, by walking up the integral of exp(-z^2 / 2) in steps of 1/1024 (trapezoids, straight
/// lines within a step: errors below 1e-5 sigma).
constexpr UpperQuantiles make_upper_quantiles() {
  constexpr std::int64_t kSteps = 1024;  // per unit of z
  constexpr std::int64_t kWidth = kFixedOne / kSteps;
  UpperQuantiles quantiles{};
  std::int64_t area = 0;  // in units of one step
  std::int64_t z = 0;
  std::int64_t density = kFixedOne;
  for (std::int64_t i = 0; i < kNumQuantiles / 2; ++i) {
    const std::int64_t target = (2 * i + 1) * (kFixedSqrtTwoPi * kSteps / (2 * kNumQuantiles));
    std::int64_t next_density = fixed_exp(-((z + kWidth) >> 15) * ((z + kWidth) >> 15) / 2);
    while (area + (density + next_density) / 2 < target) {
      area += (density + next_density) / 2;
      z += kWidth;
      density = next_density;
      next_density = fixed_exp(-((z + kWidth) >> 15) * ((z + kWidth) >> 15) / 2);
    }
    quantiles[static_cast<std::size_t>(i)] = z + (target - area) * kWidth / ((density + next_density) / 2);
  }
  return quantiles;
}

constexpr UpperQuantiles kUpperQuantiles = make_upper_quantiles();

}  // namespace

Random::Random(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t key = splitmix64(seed) ^ stream;
  key = splitmix64(key);  // neighbouring streams start far apart
  for (std::uint64_t& word : state_) word = splitmix64(key);
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::int64_t Random::below(std::int64_t count) {
  return static_cast<std::int64_t>(((next() >> 32) * static_cast<std::uint64_t>(count)) >> 32);
}

std::size_t Random::pick(std::span<const std::int64_t> weights) {
  std::int64_t total = 0;
  for (const std::int64_t weight : weights) total += weight;
  std::int64_t left = below(total);
  std::size_t index = 0;
  while (left >= weights[index]) left -= weights[index++];
  return index;
}

std::int64_t Random::geometric(std::int64_t mean, std::int64_t limit) {
  std::int64_t count = 1;
  while (count < limit && below(mean) >= 1000) ++count;
  return count;
}

std::int64_t Random::normal() {
  const std::int64_t index = below(kNumQuantiles) - kNumQuantiles / 2;
  return index >= 0 ? kUpperQuantiles[static_cast<std::size_t>(index)]
                    : -kUpperQuantiles[static_cast<std::size_t>(-index - 1)];
}

std::int64_t Random::lognormal(std::int64_t median, std::int64_t sigma, std::int64_t low, std::int64_t high) {
  return std::clamp(scaled(median, fixed_exp(normal() * sigma / 1000)), low, high);
}

std::int64_t Random::log_uniform(std::int64_t low, std::int64_t octaves_thousandths) {
  return scaled(low, fixed_exp(below(kFixedOne) * octaves_thousandths / 1000 * kFixedLn2 >> kFixedBits));
}

}  // namespace marble

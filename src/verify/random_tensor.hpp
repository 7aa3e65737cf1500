// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counter-based random numbers: element i of stream t depends on (seed, t, i) alone, so the same tensor comes out on
// every platform and whatever rank or thread makes it.

#include <cstdint>

namespace marble {

/// The finaliser of splitmix64.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

/// Close to a standard normal: the sum of four uniform 16-bit numbers, mean 0, variance 1, at most 3.47 in size. Every
/// operation is exact or rounds once, hence the same everywhere.
[[nodiscard]] constexpr float random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const std::uint64_t bits = mix64(mix64(mix64(seed) ^ stream) ^ index);
  std::int64_t sum = 0;
  for (int part = 0; part < 4; ++part) sum += static_cast<std::int64_t>((bits >> (16 * part)) & 0xffff);
  constexpr double kMean = 4 * 32767.5;
  constexpr double kDeviation = 37837.22;  // 65536 / sqrt(3)
  return static_cast<float>((static_cast<double>(sum) - kMean) / kDeviation);
}

}  // namespace marble

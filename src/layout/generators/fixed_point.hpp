// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fixed-point numbers with 30 fraction bits, so that no result depends on a libm or on how a compiler fuses doubles.

#include <cstdint>

namespace marble {

inline constexpr int kFixedBits = 30;
inline constexpr std::int64_t kFixedOne = std::int64_t{1} << kFixedBits;
inline constexpr std::int64_t kFixedLn2 = 744261118;         // ln 2
inline constexpr std::int64_t kFixedSqrtTwoPi = 2691471616;  // sqrt(2 pi)

/// exp(x) for x in [-20, 20], to about 1e-8 of the result or 2^-30, whichever is larger.
[[nodiscard]] constexpr std::int64_t fixed_exp(std::int64_t x) {
  std::int64_t power = x / kFixedLn2;
  if (x % kFixedLn2 < 0) --power;
  const std::int64_t rest = x - power * kFixedLn2;  // [0, ln 2)
  std::int64_t value = kFixedOne;
  for (std::int64_t k = 12; k >= 1; --k) value = kFixedOne + ((rest * value) >> kFixedBits) / k;  // Horner
  return power >= 0 ? value << power : value >> -power;
}

/// value * factor, rounded to the nearest integer; the product must stay below 2^62.
[[nodiscard]] constexpr std::int64_t scaled(std::int64_t value, std::int64_t factor) {
  return (value * factor + kFixedOne / 2) >> kFixedBits;
}

}  // namespace marble

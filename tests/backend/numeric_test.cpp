// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "base/numeric.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace marble {
namespace {

/// The value of a pattern with `exponent_bits` and `fraction_bits`, by the book.
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1U << exponent_bits) - 1));
  const auto fraction = static_cast<double>(bits & ((1U << fraction_bits) - 1));
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1.0 : 1.0;
  const double size = std::ldexp(1.0, fraction_bits);
  if (exponent == (1 << exponent_bits) - 1)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction / size, 1 - bias);
  return sign * std::ldexp(1.0 + fraction / size, exponent - bias);
}

template <typename ToFloat, typename FromFloat>
void check_every_pattern(int exponent_bits, int fraction_bits, ToFloat to_float, FromFloat from_float) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const double value = value_of(bits, exponent_bits, fraction_bits);
    const float converted = to_float(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(converted));
      EXPECT_TRUE(std::isnan(to_float(from_float(converted))));
      continue;
    }
    ASSERT_EQ(static_cast<double>(converted), value) << bits;
    ASSERT_EQ(from_float(converted), pattern) << bits;
    const std::uint32_t magnitude = bits & 0x7fffU;
    const std::uint32_t infinity = ((1U << exponent_bits) - 1) << fraction_bits;
    if (magnitude + 1 >= infinity) continue;
    // Halfway to the next pattern goes to the even one; a hair to either side to the nearer one.
    const auto next = static_cast<std::uint16_t>(pattern + 1);
    const auto middle = static_cast<float>((value + value_of(next, exponent_bits, fraction_bits)) / 2);
    const float away = std::copysign(std::numeric_limits<float>::infinity(), converted);
    EXPECT_EQ(from_float(middle), pattern % 2 == 0 ? pattern : next) << bits;
    EXPECT_EQ(from_float(std::nextafter(middle, 0.0F)), pattern) << bits;
    EXPECT_EQ(from_float(std::nextafter(middle, away)), next) << bits;
  }
}

TEST(Numeric, ConvertsEveryBf16AndRoundsToNearestEven) {
  check_every_pattern(8, 7, bf16_to_fp32, fp32_to_bf16);
}

TEST(Numeric, ConvertsEveryFp16AndRoundsToNearestEven) {
  check_every_pattern(5, 10, fp16_to_fp32, fp32_to_fp16);
}

TEST(Numeric, OverflowsToInfinity) {
  EXPECT_EQ(fp32_to_fp16(65519.0F), 0x7bffU);
  EXPECT_EQ(fp32_to_fp16(65520.0F), 0x7c00U);
  EXPECT_EQ(fp32_to_fp16(-1e30F), 0xfc00U);
  EXPECT_EQ(fp32_to_bf16(std::numeric_limits<float>::max()), 0x7f80U);
  EXPECT_EQ(fp32_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80U);
}

}  // namespace
}  // namespace marble

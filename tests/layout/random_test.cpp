// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/random.hpp"

#include "layout/generators/fixed_point.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace marble {
namespace {

double to_double(std::int64_t fixed) {
  return static_cast<double>(fixed) / static_cast<double>(kFixedOne);
}

TEST(FixedPoint, ExpIsAccurate) {
  for (double x = -20; x <= 20; x += 0.0137) {
    const auto fixed = static_cast<std::int64_t>(x * static_cast<double>(kFixedOne));
    EXPECT_NEAR(to_double(fixed_exp(fixed)), std::exp(to_double(fixed)), 1e-7 * std::exp(x) + 2e-9) << x;
  }
}

TEST(Random, FirstDrawsArePinned) {
  Random random(0, 0);
  EXPECT_EQ(random.next(), 0x8c4986f3f0e565d5U);
  EXPECT_EQ(random.next(), 0xf4547fdf5c2f56b6U);
  EXPECT_EQ(Random(1, 2).next(), 0x9f0b1e7ea7c98bcbU);
}

TEST(Random, SeedsAndStreamsDiffer) {
  std::set<std::uint64_t> first;
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    for (std::uint64_t stream = 0; stream < 100; ++stream) first.insert(Random(seed, stream).next());
  EXPECT_EQ(first.size(), 10000U);
}

TEST(Random, NormalsHaveTheQuantilesOfTheNormalDistribution) {
  Random random(1, 1);
  std::vector<double> draws(200000);
  for (double& draw : draws) draw = to_double(random.normal());
  std::ranges::sort(draws);
  for (const double z : {-3.0, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0}) {
    const auto below = std::ranges::lower_bound(draws, z) - draws.begin();
    const double expected = std::erfc(-z / std::sqrt(2.0)) / 2;
    EXPECT_NEAR(static_cast<double>(below) / 200000, expected, 0.005) << z;
  }
  EXPECT_NEAR(draws.back(), 3.668329, 1e-5);  // the quantile of 1 - 1/8192
  EXPECT_EQ(draws.front(), -draws.back());
}

TEST(Random, DrawsStayInTheirRanges) {
  Random random(2, 0);
  std::vector<int> seen(7);
  for (int i = 0; i < 10000; ++i) {
    ++seen[static_cast<std::size_t>(random.between(0, 6))];
    const std::int64_t lognormal = random.lognormal(100, 900, 20, 400);
    EXPECT_TRUE(lognormal >= 20 && lognormal <= 400);
    const std::int64_t log_uniform = random.log_uniform(1000, 3000);
    EXPECT_TRUE(log_uniform >= 1000 && log_uniform <= 8000);
    const std::int64_t geometric = random.geometric(4000, 30);
    EXPECT_TRUE(geometric >= 1 && geometric <= 30);
  }
  for (const int count : seen) EXPECT_NEAR(count, 10000 / 7, 150);
}

TEST(Random, GeometricHasItsMean) {
  Random random(3, 0);
  std::int64_t sum = 0;
  for (int i = 0; i < 100000; ++i) sum += random.geometric(2800, 1000);
  EXPECT_NEAR(static_cast<double>(sum) / 100000, 2.8, 0.05);
}

}  // namespace
}  // namespace marble

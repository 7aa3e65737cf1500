// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/dense_reference_cases.hpp"

namespace marble {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, DenseReference, ::testing::Values(Reference{"cpu", dense_reference}), reference_name);

TEST(RandomInputs, AreNormalExactAndTheSameEverywhere) {
  const DenseInputs inputs = random_inputs(1000, {2, 1, 8}, DType::bf16, 5);
  double sum = 0.0, squares = 0.0;
  for (float x : inputs.q) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(x) & 0xffffU, 0U) << "not a bf16";
    sum += static_cast<double>(x);
    squares += static_cast<double>(x) * static_cast<double>(x);
  }
  const auto count = static_cast<double>(inputs.q.size());
  EXPECT_NEAR(sum / count, 0.0, 0.03);
  EXPECT_NEAR(squares / count, 1.0, 0.03);
  EXPECT_NE(inputs.k, inputs.v);
  EXPECT_EQ(inputs.q, random_inputs(1000, {2, 1, 8}, DType::bf16, 5).q);
  EXPECT_EQ(inputs.q, random_inputs(1000, {2, 1, 8}, DType::bf16, 5, 3).q) << "three threads";
  EXPECT_NE(inputs.q, random_inputs(1000, {2, 1, 8}, DType::bf16, 6).q);
  // A longer pack begins with the same numbers, whatever its length.
  const std::vector<float> longer = random_inputs(2000, {2, 1, 8}, DType::bf16, 5).q;
  EXPECT_TRUE(std::equal(inputs.q.begin(), inputs.q.end(), longer.begin()));
}

}  // namespace
}  // namespace marble

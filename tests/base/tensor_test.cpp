// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/tensor.hpp"

#include "marble/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace marble {
namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int32_t kHeads = 4, kDim = 3;

class TensorBlock : public testing::Test {
 protected:
  TensorBlock() { std::iota(values_.begin(), values_.end(), 0.0F); }

  static float at(const TensorView& view, std::int64_t row, std::int32_t head, std::int32_t i) {
    return static_cast<const float*>(view.data)[row * view.row_stride + head * view.head_stride + i];
  }

  std::vector<float> values_ = std::vector<float>(kRows * kHeads * kDim);
  TensorView tensor_ = dense_view(values_.data(), DType::fp32, kRows, kHeads, kDim);
};

TEST(DType, NamesAndSizes) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(size_of(DType::fp32), 4);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::fp16), 2);
}

TEST(DType, UnknownNamesAreRefusedByName) {
  for (const char* name : {"", "fp8", "FP32", "fp32 ", "float"}) EXPECT_THROW((void)parse_dtype(name), InvalidArgument);
  try {
    (void)parse_dtype("fp8");
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "dtype 'fp8' is not one of fp32, bf16, fp16");
  }
}

TEST_F(TensorBlock, DenseViewIsContiguous) {
  EXPECT_TRUE(tensor_.contiguous());
  EXPECT_EQ(tensor_.bytes(), kRows * kHeads * kDim * 4);
  EXPECT_EQ(tensor_.row_stride, kHeads * kDim);
  EXPECT_EQ(tensor_.head_stride, kDim);
  EXPECT_EQ(dense_view(nullptr, DType::bf16, 10, 2, 8).bytes(), 320);
}

TEST_F(TensorBlock, HoldsTheElementsItNames) {
  const TensorView block = tensor_.block(1, 3, 2, 2);
  EXPECT_EQ(block.rows, 3);
  EXPECT_EQ(block.heads, 2);
  for (std::int64_t row = 0; row < 3; ++row)
    for (std::int32_t head = 0; head < 2; ++head)
      for (std::int32_t i = 0; i < kDim; ++i) EXPECT_EQ(at(block, row, head, i), at(tensor_, row + 1, head + 2, i));
}

TEST_F(TensorBlock, BlocksOfBlocksAddUp) {
  const TensorView once = tensor_.block(3, 1, 2, 1);
  const TensorView twice = tensor_.block(1, 4, 1, 3).block(2, 1, 1, 1);
  EXPECT_EQ(twice.data, once.data);
}

TEST_F(TensorBlock, ContiguityFollowsTheGaps) {
  EXPECT_TRUE(tensor_.block(1, 3, 0, kHeads).contiguous());  // whole rows
  EXPECT_TRUE(tensor_.block(2, 1, 1, 2).contiguous());       // heads of one row
  EXPECT_FALSE(tensor_.block(0, 2, 0, kHeads - 1).contiguous());
  EXPECT_FALSE(tensor_.block(0, 2, 1, 1).contiguous());
  EXPECT_TRUE(tensor_.block(2, 0, 1, 1).contiguous());  // nothing has no gaps
  TensorView padded_heads = tensor_;
  padded_heads.head_stride = kDim + 1;
  EXPECT_FALSE(padded_heads.contiguous());
}

TEST_F(TensorBlock, EmptyBlocksAtTheEndAreLegal) {
  EXPECT_EQ(tensor_.block(kRows, 0, kHeads, 0).bytes(), 0);
}

TEST_F(TensorBlock, LeavingTheTensorIsOurBug) {
  EXPECT_THROW((void)tensor_.block(3, 3, 0, 1), InternalError);
  EXPECT_THROW((void)tensor_.block(0, 1, 3, 2), InternalError);
  EXPECT_THROW((void)tensor_.block(-1, 1, 0, 1), InternalError);
  EXPECT_THROW((void)tensor_.block(0, -1, 0, 1), InternalError);
  EXPECT_THROW((void)tensor_.block(0, 1, -1, 1), InternalError);
}

TEST(TensorView, OffsetsBeyondFourGigabytesAreExact) {
  char anchor = 0;
  const TensorView tensor = dense_view(&anchor, DType::bf16, 10'000'000, 64, 128);
  EXPECT_EQ(tensor.bytes(), std::int64_t{10'000'000} * 64 * 128 * 2);
  const TensorView last = tensor.block(9'999'999, 1, 63, 1);
  EXPECT_EQ(reinterpret_cast<std::intptr_t>(last.data) - reinterpret_cast<std::intptr_t>(&anchor),
            (std::int64_t{9'999'999} * 64 * 128 + 63 * 128) * 2);
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/mask.hpp"

#include "marble/error.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace marble {
namespace {

TokenTracks token(std::int64_t position, std::int32_t segment = -1, std::int32_t noise = -1, std::int32_t sample = 0) {
  return {sample, segment, noise, position};
}

TEST(MaskRuleTest, CausalTextSeesItselfAndThePast) {
  EXPECT_TRUE(is_legal({}, token(5), token(5)));
  EXPECT_TRUE(is_legal({}, token(5), token(4)));
  EXPECT_FALSE(is_legal({}, token(4), token(5)));
}

TEST(MaskRuleTest, SamplesNeverSeeEachOther) {
  EXPECT_FALSE(is_legal({}, token(5, -1, -1, 1), token(4, -1, -1, 0)));
  EXPECT_FALSE(is_legal({}, token(5, 3, -1, 1), token(4, 3, -1, 0)));
}

TEST(MaskRuleTest, SpansOfOneSegmentSeeBothWays) {
  EXPECT_TRUE(is_legal({}, token(4, 2), token(9, 2)));
  EXPECT_FALSE(is_legal({}, token(4, 2), token(9, 3)));
}

TEST(MaskRuleTest, NoiseIsReadByItsOwnSetOnly) {
  EXPECT_TRUE(is_legal({}, token(4, 1, 0), token(9, 1, 0)));
  EXPECT_FALSE(is_legal({}, token(20), token(9, 1, 0)));
  EXPECT_TRUE(is_legal({}, token(9, 1, 0), token(4)));
}

TEST(MaskRuleTest, BranchIsCausalInsideAndUnreadOutside) {
  EXPECT_TRUE(is_legal({}, token(9, -1, 4), token(8, -1, 4)));
  EXPECT_FALSE(is_legal({}, token(8, -1, 4), token(9, -1, 4)));
  EXPECT_FALSE(is_legal({}, token(10, -1, 5), token(9, -1, 4)));
}

TEST(MaskRuleTest, WindowCountsTheKeyItself) {
  const MaskRule window{.window = 3};
  EXPECT_TRUE(is_legal(window, token(10), token(8)));
  EXPECT_FALSE(is_legal(window, token(10), token(7)));
}

TEST(MaskRuleTest, ClampCutsSpansOnBothSides) {
  const MaskRule open{.window = 3}, clamped{.window = 3, .clamp = true};
  EXPECT_TRUE(is_legal(open, token(10, 1), token(4, 1)));
  EXPECT_FALSE(is_legal(clamped, token(10, 1), token(4, 1)));
  EXPECT_TRUE(is_legal(open, token(4, 1), token(10, 1)));
  EXPECT_FALSE(is_legal(clamped, token(4, 1), token(10, 1)));
  EXPECT_TRUE(is_legal(clamped, token(4, 1), token(6, 1)));
}

TEST(MaskRuleTest, RefusesNegativeWindowsAndClampWithoutWindow) {
  EXPECT_THROW(validate(MaskRule{.window = -1}), InvalidArgument);
  EXPECT_THROW(validate(MaskRule{.window = 0, .clamp = true}), InvalidArgument);
  EXPECT_NO_THROW(validate(MaskRule{.window = 1, .clamp = true}));
}

}  // namespace
}  // namespace marble

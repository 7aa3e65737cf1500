// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "base/fnv.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace marble {
namespace {

std::uint64_t fnv_of_text(std::uint64_t hash, std::string_view eight_bytes) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8; ++i) word |= std::uint64_t{static_cast<unsigned char>(eight_bytes[i])} << (8 * i);
  return fnv1a(hash, word);
}

TEST(Fnv, MatchesThePublishedFunctionByteByByte) {
  static_assert(fnv1a(kFnvOffset, 0) == 0xa8c7f832281a39c5U);  // FNV-1a of eight zero bytes
  EXPECT_EQ(fnv_of_text(kFnvOffset, "chongo w"), 0xd1edd10b507344d0U);
}

TEST(Fnv, OrderAndEveryBitMatter) {
  EXPECT_NE(fnv1a(fnv1a(kFnvOffset, 1), 2), fnv1a(fnv1a(kFnvOffset, 2), 1));
  std::set<std::uint64_t> hashes{fnv1a(kFnvOffset, 0)};
  for (int bit = 0; bit < 64; ++bit) hashes.insert(fnv1a(kFnvOffset, std::uint64_t{1} << bit));
  EXPECT_EQ(hashes.size(), 65U);
}

TEST(FnvWords, NothingLeavesTheHash) {
  EXPECT_EQ(fnv1a_words(kFnvOffset, {}), kFnvOffset);
}

TEST(FnvWords, EveryByteMattersAtAnyLength) {
  for (std::size_t length = 1; length <= 24; ++length) {
    std::vector<std::byte> bytes(length);
    std::set<std::uint64_t> hashes{fnv1a_words(kFnvOffset, bytes)};
    for (std::size_t at = 0; at < length; ++at) {
      bytes[at] = std::byte{1};
      hashes.insert(fnv1a_words(kFnvOffset, bytes));
      bytes[at] = std::byte{0};
    }
    EXPECT_EQ(hashes.size(), length + 1) << "length " << length;
  }
}

TEST(FnvWords, LastWordIsPaddedWithZeros) {
  constexpr std::array<std::byte, 16> kBytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5},
                                             std::byte{6}, std::byte{7}, std::byte{8}, std::byte{9}};
  const std::span all(kBytes);
  EXPECT_EQ(fnv1a_words(kFnvOffset, all.first(9)), fnv1a_words(kFnvOffset, all));
  EXPECT_NE(fnv1a_words(kFnvOffset, all.first(8)), fnv1a_words(kFnvOffset, all));
}

TEST(FnvWords, WordsChain) {
  constexpr std::array<std::byte, 16> kBytes{std::byte{7}};
  const std::span all(kBytes);
  EXPECT_EQ(fnv1a_words(fnv1a_words(kFnvOffset, all.first(8)), all.last(8)), fnv1a_words(kFnvOffset, all));
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// What arrives is copied and added in as few calls of the backend as the order of sums allows.

#include "exec/ordered_copies.hpp"

#include "support/recording.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace marble::test {
namespace {

/// A sum of [8 rows, 4 heads], to which receives add ones.
class Sums {
 public:
  Sums() { ones_.fill(1.0F); }

  void recv(std::int64_t row, std::int64_t rows, std::int32_t head, std::int32_t heads, bool add = true,
            std::int32_t buffer = 0) {
    const TensorView target = dense_view(sums_[static_cast<std::size_t>(buffer)].data(), DType::fp32, 8, 4, 1);
    const Transfer transfer{0, buffer, row, rows, head, heads, add ? 1 : 0, 0};
    copies_.add(transfer,
                {dense_view(ones_.data(), DType::fp32, rows, heads, 1), target.block(row, rows, head, heads), add});
  }
  Log finish() {
    copies_.flush();
    return log_;
  }
  [[nodiscard]] float at(std::int64_t row, std::int64_t head) const {
    return sums_[0][static_cast<std::size_t>(4 * row + head)];
  }

 private:
  std::array<float, 32> ones_{};
  std::array<std::array<float, 32>, 2> sums_{};
  Log log_;
  RecordingBackend backend_{log_, 0};
  OrderedCopies copies_{backend_, 2};
};

TEST(OrderedCopies, SharesOfHeadsAndRangesOfRowsAreOneCall) {
  Sums sums;
  for (std::int32_t head = 0; head < 4; ++head) sums.recv(0, 8, head, 1, false);
  EXPECT_THAT(sums.finish(), testing::ElementsAre("copy 4"));

  Sums ranges;
  ranges.recv(0, 2, 0, 4);
  ranges.recv(2, 3, 0, 4);
  ranges.recv(0, 2, 0, 4, true, 1);  // of another buffer
  ranges.recv(7, 1, 0, 4);
  EXPECT_THAT(ranges.finish(), testing::ElementsAre("add 4"));
}

TEST(OrderedCopies, SumsIntoTheSameElementsFollowOneAnother) {
  Sums sums;
  sums.recv(0, 8, 0, 2);  // shares of replicated key heads
  sums.recv(0, 8, 2, 2);
  sums.recv(0, 8, 1, 2);
  EXPECT_THAT(sums.finish(), testing::ElementsAre("add 2", "add 1"));
  EXPECT_EQ(sums.at(5, 0), 1.0F);
  EXPECT_EQ(sums.at(5, 1), 2.0F);

  Sums peers;
  for (int peer = 0; peer < 3; ++peer) {
    peers.recv(0, 3, 0, 4);
    peers.recv(4, 2, 0, 4);
  }
  EXPECT_THAT(peers.finish(), testing::ElementsAre("add 2", "add 2", "add 2"));
  EXPECT_EQ(peers.at(4, 3), 3.0F);
  EXPECT_EQ(peers.at(3, 3), 0.0F);
}

TEST(OrderedCopies, ACopyOntoASumComesAfterIt) {
  Sums sums;
  sums.recv(1, 1, 0, 4);
  sums.recv(1, 1, 0, 4);
  sums.recv(1, 1, 0, 4, false);
  EXPECT_THAT(sums.finish(), testing::ElementsAre("add 1", "add 1", "copy 1"));
  EXPECT_EQ(sums.at(1, 0), 1.0F);
}

TEST(OrderedCopies, NothingIsNoCall) {
  Sums sums;
  EXPECT_THAT(sums.finish(), testing::IsEmpty());
}

}  // namespace
}  // namespace marble::test

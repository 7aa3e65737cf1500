// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/key_run.hpp"

#include <gtest/gtest.h>

namespace marble::cuda {
namespace {

TEST(KeyRun, EndsAfterItsBlocksWhateverItsKind) {
  for (const TileKind kind : {kPartialTile, kNoTile, kFullTile})
    for (const int begin : {0, 1, 7, 4095})
      for (const int length : {0, 1, 2, 9})
        for (const int tile_rows : {64, 128}) {
          KeyRun run = KeyRun::of_blocks(begin, begin + length, kind);
          EXPECT_EQ(run.row, begin * kBlock);
          for (int tile = 0; tile < length * kBlock / tile_rows; ++tile) {
            EXPECT_EQ(run.kind(), kind);
            EXPECT_FALSE(run.is_over());
            run.row += tile_rows;
          }
          EXPECT_EQ(run.kind(), kind);
          EXPECT_TRUE(run.is_over());
        }
}

}  // namespace
}  // namespace marble::cuda

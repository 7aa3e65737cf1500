// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mask of one 128 x 128 block as bits, in the order in which a thread holds its scores: word [row][q] covers the
// keys 8j + 2q + e of `row`, bit 2j + e. So the two words of a thread's two rows index its accumulators directly, and
// a masked score costs one predicate move per seven scores and a select. One warp builds the words.

#include "backend/cuda/params.hpp"

namespace marble::cuda {

inline constexpr int kMaskWords = kBlock * 4;

__device__ __forceinline__ uint4 xor_words(uint4 a, uint4 b) {
  return {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w};
}

/// XOR of `words` over the lanes below this one.
__device__ __forceinline__ uint4 exclusive_xor_scan(uint4 words, int lane) {
  uint4 sum = words;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint4 below = {__shfl_up_sync(~0u, sum.x, distance), __shfl_up_sync(~0u, sum.y, distance),
                         __shfl_up_sync(~0u, sum.z, distance), __shfl_up_sync(~0u, sum.w, distance)};
    if (lane >= distance) sum = xor_words(sum, below);
  }
  return xor_words(sum, words);
}

/// A lane's share of a key block's row intervals: keys 32i + lane.
struct LaneIntervals {
  RowInterval keys[4];
};

__device__ __forceinline__ LaneIntervals load_intervals(const RowInterval* key_intervals, int key_block, int lane) {
  LaneIntervals intervals;
#pragma unroll
  for (int i = 0; i < 4; ++i) intervals.keys[i] = key_intervals[std::int64_t{key_block} * kBlock + 32 * i + lane];
  return intervals;
}

/// From each key's row interval. A key's bit flips at the first and after the last row that see it, so the words are a
/// running XOR over rows of the flips: some 250 instructions a block, where testing every score would take thousands.
__device__ __forceinline__ void build_mask_from_intervals(std::uint32_t* words, const LaneIntervals& intervals,
                                                          int query_row, int lane) {
  uint4* rows = reinterpret_cast<uint4*>(words);
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[32 * i + lane] = {0, 0, 0, 0};
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = 32 * i + lane;
    const int word = (key % 8) / 2;
    const std::uint32_t bit = 1u << (2 * (key / 8) + key % 2);
    const int first = max(intervals.keys[i].lo - query_row, 0);
    const int end = min(intervals.keys[i].hi - query_row, kBlock);
    if (first < end) {
      atomicXor(&words[4 * first + word], bit);
      if (end < kBlock) atomicXor(&words[4 * end + word], bit);
    }
  }
  __syncwarp();
  uint4 flips[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    flips[i] = rows[4 * lane + i];
    if (i > 0) flips[i] = xor_words(flips[i], flips[i - 1]);
  }
  const uint4 below = exclusive_xor_scan(flips[3], lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[4 * lane + i] = xor_words(flips[i], below);
}

/// From the four tracks of keys and queries, pair by pair, with the mask rule itself.
__device__ __forceinline__ void build_mask_from_tracks(std::uint32_t* words, const VisibilityArrays& visibility,
                                                       int key_block, int query_block, int lane) {
  const std::int64_t key_row = std::int64_t{key_block} * kBlock;
  const std::int64_t query_row = std::int64_t{query_block} * kBlock;
  const auto tokens = [](const RowTracks& row) {
    return TokenTracks{row.sample, row.segment, row.noise, row.position};
  };
  for (int row = lane; row < kBlock; row += 32) {
    const TokenTracks query = tokens(visibility.query_tracks[query_row + row]);
    std::uint32_t bits[4] = {};
    for (int group = 0; group < kBlock / 8; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const RowTracks key = visibility.key_tracks[key_row + 8 * group + i];
        if (key.sample >= 0 && is_legal(visibility.rule, query, tokens(key))) bits[i / 2] |= 1u << (2 * group + i % 2);
      }
    }
    reinterpret_cast<uint4*>(words)[row] = {bits[0], bits[1], bits[2], bits[3]};
  }
}

}  // namespace marble::cuda

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mask of one block of queries against a tile of keys as bits, in the order in which a thread of the backward
// kernel holds its transposed scores: word [key][q] covers the queries 8j + 2q + e of the block, bit 2j + e. One warp
// builds the words.

#include "backend/cuda/params.hpp"
#include "backend/cuda/ptx_bulk.cuh"

namespace marble::cuda {

/// `count` ones from bit `first` on.
__device__ __forceinline__ std::uint32_t bit_field(int first, int count) {
  std::uint32_t bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(first), "r"(count));
  return bits;
}

/// How many of the queries that word `q` covers lie below `query`.
__device__ __forceinline__ int owned_below(int query, int q) {
  return 2 * (query / 8) + min(max(query % 8 - 2 * q, 0), 2);
}

/// A key's visible rows are one interval, so each word is a run of ones, in closed form.
__device__ __forceinline__ std::uint32_t word_from_interval(RowInterval interval, int query_row, int q) {
  const int first = min(max(interval.lo - query_row, 0), kBlock);
  const int end = min(max(interval.hi - query_row, first), kBlock);
  const int begin = owned_below(first, q);
  return bit_field(begin, owned_below(end, q) - begin);
}

/// From the four tracks of key and queries, pair by pair, with the mask rule itself. Tracks are the exception: this
/// saves registers, not time.
__device__ __forceinline__ std::uint32_t word_from_tracks(const VisibilityArrays& visibility, const RowTracks& key,
                                                          const RowTracks* queries, int bits = 32) {
  const auto tokens = [](const RowTracks& row) {
    return TokenTracks{row.sample, row.segment, row.noise, row.position};
  };
  std::uint32_t word = 0;
#pragma unroll 1
  for (int bit = 0; bit < bits; ++bit) {
    const RowTracks query = queries[bit / 2 * 8 + bit % 2];
    if (key.sample >= 0 && is_legal(visibility.rule, tokens(query), tokens(key))) word |= 1u << bit;
  }
  return word;
}

/// One word of kBits bits, from any multiple of 8 rows of queries on.
template <int kBits>
__device__ __forceinline__ std::uint32_t transposed_mask_word(const VisibilityArrays& visibility, int key_row,
                                                              int query_row, int q) {
  return visibility.key_intervals != nullptr ? word_from_interval(visibility.key_intervals[key_row], query_row, q)
                                             : word_from_tracks(visibility, visibility.key_tracks[key_row],
                                                                visibility.query_tracks + query_row + q * 2, kBits);
}

/// Each lane fills the four words of every 32nd key.
template <int kKeys>
__device__ __forceinline__ void build_transposed_mask(std::uint32_t* words, const VisibilityArrays& visibility,
                                                      int key_row, int query_block) {
#pragma unroll 1
  for (int key = static_cast<int>(thread_index() % 32); key < kKeys; key += 32) {
    if (visibility.key_intervals != nullptr) {
      const RowInterval interval = visibility.key_intervals[key_row + key];
#pragma unroll
      for (int q = 0; q < 4; ++q) words[4 * key + q] = word_from_interval(interval, query_block * kBlock, q);
    } else {
#pragma unroll 1
      for (int q = 0; q < 4; ++q)
        words[4 * key + q] = word_from_tracks(visibility, visibility.key_tracks[key_row + key],
                                              visibility.query_tracks + std::int64_t{query_block} * kBlock + q * 2);
    }
  }
}

}  // namespace marble::cuda

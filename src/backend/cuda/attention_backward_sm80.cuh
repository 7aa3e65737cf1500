// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Backward attention on any GPU from sm_80 on, over a rank plan's items: one CTA a unit, mma.sync from swizzled shared
// memory. A unit keeps a tile of keys and values in shared memory and their gradients in registers, and meets its query
// tiles one after the other, the next one on its way. Scores are transposed, S^T = K Q^T and dP^T = V dO^T; P^T and
// dS^T pass through shared memory, where all warps' parts meet for dV += P^T dO, dK += dS^T Q and dQ = dS K.

#include "backend/cuda/attention_backward.hpp"
#include "backend/cuda/backward_mask.cuh"
#include "backend/cuda/backward_traits.hpp"
#include "backend/cuda/backward_walk.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/planned_order.hpp"
#include "backend/cuda/warp_product.cuh"

namespace marble::cuda {

/// Shared memory that a CTA may have: on 8.0 and 9.0 at least, and on 8.6 and 8.9, where tiles are compact.
inline constexpr int kPlainSharedBytes = 163 * 1024;
inline constexpr int kLeastSharedBytes = 99 * 1024;

/// Tiles, and how a product's warps share its rows and columns.
template <int kDim, bool kCompact>
struct PlainBackwardTraits;

template <>
struct PlainBackwardTraits<64, false> {
  static constexpr int kTileKeys = 128, kTileQueries = 128, kStages = 2, kWarps = 8;
  static constexpr int kScoreWarps = 4, kGradientWarps = 4, kDqWarps = 4;  // along a product's rows
};
template <>
struct PlainBackwardTraits<64, true> {
  static constexpr int kTileKeys = 128, kTileQueries = 64, kStages = 2, kWarps = 8;
  static constexpr int kScoreWarps = 4, kGradientWarps = 4, kDqWarps = 2;
};
template <>
struct PlainBackwardTraits<128, false> {
  static constexpr int kTileKeys = 128, kTileQueries = 64, kStages = 2, kWarps = 8;
  static constexpr int kScoreWarps = 4, kGradientWarps = 4, kDqWarps = 2;
};
template <>
struct PlainBackwardTraits<128, true> {
  static constexpr int kTileKeys = 64, kTileQueries = 64, kStages = 1, kWarps = 8;
  static constexpr int kScoreWarps = 2, kGradientWarps = 2, kDqWarps = 2;
};
template <>
struct PlainBackwardTraits<256, false> {
  static constexpr int kTileKeys = 64, kTileQueries = 64, kStages = 1, kWarps = 8;
  static constexpr int kScoreWarps = 2, kGradientWarps = 2, kDqWarps = 2;
};
template <>
struct PlainBackwardTraits<256, true> {
  static constexpr int kTileKeys = 32, kTileQueries = 32, kStages = 1, kWarps = 4;
  static constexpr int kScoreWarps = 2, kGradientWarps = 2, kDqWarps = 2;
};

/// A tile of queries in a unit's sequence.
struct PlainTile {
  static constexpr int kNone = -1;
  int head;  // kNone: the unit has no tiles
  int row;
  bool is_partial;
  bool is_last;
  int waits_for = kNone;  // the turn of a planned order, with a block's first tile
  int leaves = kNone;     // and what its counter says after the block's last
};

template <typename T, int kDim, bool kCompact>
struct PlainBackwardShared {
  using Traits = PlainBackwardTraits<kDim, kCompact>;
  static constexpr int kPitch = Traits::kTileQueries > 64 ? 128 : 64;  // of weights, whose rows are keys
  alignas(128) T k[Traits::kTileKeys * kDim];
  alignas(128) T v[Traits::kTileKeys * kDim];
  alignas(128) T q[Traits::kStages][Traits::kTileQueries * kDim];
  alignas(128) T dout[Traits::kStages][Traits::kTileQueries * kDim];
  alignas(128) T weights[Traits::kTileKeys * kPitch];
  alignas(128) T score_gradients[Traits::kTileKeys * kPitch];
  alignas(16) float lse[Traits::kStages][Traits::kTileQueries];
  alignas(16) float minus_delta[Traits::kStages][Traits::kTileQueries];
  PlainTile tiles[4];  // of the last, this and the next two
  GroupWalk walk;
  GroupWalk::Block block;
  int part;  // of the block, that comes next
  BackwardUnit unit;
  int key_unit;  // among the launch's key tiles
};

template <typename T, int kDim, bool kCompact>
class PlainBackward {
 public:
  using Shared = PlainBackwardShared<T, kDim, kCompact>;
  using Traits = PlainBackwardTraits<kDim, kCompact>;
  static constexpr int kThreads = Traits::kWarps * 32;
  static constexpr int kKeyTiles = kBlock / Traits::kTileKeys;
  static constexpr int kQueryTiles = kBlock / Traits::kTileQueries;
  static constexpr int kPitch = Shared::kPitch;
  // A warp's part of S^T and dP^T, of dK and dV, and of dQ.
  static constexpr int kScoreRows = Traits::kTileKeys / Traits::kScoreWarps;
  static constexpr int kScoreColumns = Traits::kTileQueries / (Traits::kWarps / Traits::kScoreWarps);
  static constexpr int kScoreAtoms = kScoreRows / 16;
  static constexpr int kScores = kScoreColumns / 2;
  static constexpr int kGradientRows = Traits::kTileKeys / Traits::kGradientWarps;
  static constexpr int kGradientColumns = kDim / (Traits::kWarps / Traits::kGradientWarps);
  static constexpr int kGradientAtoms = kGradientRows / 16;
  static constexpr int kGradients = kGradientColumns / 2;
  static constexpr int kDqRows = Traits::kTileQueries / Traits::kDqWarps;
  static constexpr int kDqColumns = kDim / (Traits::kWarps / Traits::kDqWarps);
  static constexpr int kDqAtoms = kDqRows / 16;

  __device__ __forceinline__ PlainBackward(Shared& shared, const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) draw_unit();
    __syncthreads();
    if (tile(0).head == PlainTile::kNone) return;
    load<Traits::kTileKeys>(shared_.k, params_.k, shared_.unit.key_head, key_row(), params_.valid_key_rows);
    load<Traits::kTileKeys>(shared_.v, params_.v, shared_.unit.key_head, key_row(), params_.valid_key_rows);
    load_queries(0);
#pragma unroll
    for (int atom = 0; atom < kGradientAtoms; ++atom)
#pragma unroll
      for (int i = 0; i < kGradients; ++i) dk_[atom][i] = dv_[atom][i] = 0.f;
    int count = 0;
    for (bool is_last = false; !is_last; ++count) {
      copy_async_wait<0>();
      __syncthreads();  // the tile is here, and nobody reads the one before it any more
      is_last = tile(count).is_last;
      if (Traits::kStages == 2 && !is_last) load_queries(count + 1);
      if (threadIdx.x == 0) {
        if (count > 0) pass_query_turn(tile(count - 1));
        if (!is_last && !tile(count + 1).is_last) shared_.tiles[(count + 2) % 4] = next_tile();
      }
      attend(count, is_last);
    }
    if (params_.order.query_turns != nullptr) {
      __syncthreads();
      if (threadIdx.x == 0) pass_query_turn(tile(count - 1));
    }
    add_key_gradients();
  }

 private:
  __device__ __forceinline__ PlainTile& tile(int count) const {
    return shared_.tiles[count % 4];
  }
  __device__ __forceinline__ int stage(int count) const {
    return count % Traits::kStages;
  }
  __device__ __forceinline__ int key_row() const {
    return shared_.walk.key_block() * kBlock + shared_.unit.key_tile * Traits::kTileKeys;
  }
  __device__ __forceinline__ static unsigned warp() {
    return thread_index() / 32;
  }
  __device__ __forceinline__ static unsigned lane() {
    return thread_index() % 32;
  }

  /// Units are drawn in the order of the work array, as a planned order of sums asks.
  __device__ __forceinline__ void draw_unit() {
    const int index = atomicAdd(params_.counter, 1);
    shared_.unit = backward_unit_at(params_, kKeyTiles, index);
    shared_.key_unit = key_tile_of(params_, kKeyTiles, shared_.unit);
    shared_.walk.start(params_, shared_.unit);
    shared_.part = kQueryTiles;
    shared_.tiles[0].head = PlainTile::kNone;
    if (shared_.walk.remaining() == 0 || key_row() >= params_.valid_key_rows) return;
    shared_.tiles[0] = next_tile();
    if (!shared_.tiles[0].is_last) shared_.tiles[1] = next_tile();
  }

  __device__ __forceinline__ PlainTile next_tile() {
    if (shared_.part == kQueryTiles) {
      shared_.block = shared_.walk.next(params_);
      shared_.part = 0;
    }
    const GroupWalk::Block& block = shared_.block;
    const int part = shared_.part++;
    const bool ends_block = shared_.part == kQueryTiles;
    PlainTile tile = {block.head, block.index * kBlock + part * Traits::kTileQueries, block.is_partial,
                      ends_block && shared_.walk.remaining() == 0};
    if (params_.order.query_turns != nullptr) {
      const int key_tile = shared_.unit.key_tile;
      const Turn turn =
          planned_turn(block.rank, key_tile, kKeyTiles,
                       key_tile == kKeyTiles - 1 || key_row() + Traits::kTileKeys >= params_.valid_key_rows);
      if (part == 0) tile.waits_for = turn.begin;
      if (ends_block) tile.leaves = turn.end;
    }
    return tile;
  }

  __device__ __forceinline__ std::int32_t* turns_of(const PlainTile& tile) const {
    return params_.order.query_turns + tile.head * params_.num_blocks + tile.row / kBlock;
  }

  __device__ __forceinline__ void pass_query_turn(const PlainTile& tile) const {
    if (tile.leaves != PlainTile::kNone) pass_turn(turns_of(tile), tile.leaves);
  }

  template <int kRows>
  __device__ __forceinline__ void load(T* target, const StridedRows& source, int head, int row, int valid_rows) const {
    load_rows<kRows, kDim, kThreads>(target, source, head, row, valid_rows, params_.head_dim, params_.is_aligned);
  }

  /// Q, dO and the statistics of their rows.
  __device__ __forceinline__ void load_queries(int count) {
    const PlainTile& tile = this->tile(count);
    load<Traits::kTileQueries>(shared_.q[stage(count)], params_.q, tile.head, tile.row, params_.valid_query_rows);
    load<Traits::kTileQueries>(shared_.dout[stage(count)], params_.dout, tile.head, tile.row, params_.valid_query_rows);
    constexpr int kChunks = Traits::kTileQueries / 4;
    const int thread = static_cast<int>(thread_index());
    if (thread < 2 * kChunks) {
      const std::int64_t row = std::int64_t{tile.head} * params_.num_blocks * kBlock + tile.row + thread % kChunks * 4;
      float* target = thread < kChunks ? shared_.lse[stage(count)] : shared_.minus_delta[stage(count)];
      const float* source = thread < kChunks ? params_.lse : params_.minus_delta;
      copy_async_16(target + thread % kChunks * 4, source + row, true);
    }
    copy_async_commit();
  }

  /// A tile's P and dS, and what they add to dV, dK and dQ.
  __device__ __forceinline__ void attend(int count, bool is_last) {
    float scores[kScoreAtoms][kScores], gradients[kScoreAtoms][kScores];
    multiply_keys<true>(scores, shared_.k, shared_.q[stage(count)], [](int) {});
    const float2* lse = columns_of(shared_.lse[stage(count)]);
    const float2* minus_delta = columns_of(shared_.minus_delta[stage(count)]);
#pragma unroll
    for (int atom = 0; atom < kScoreAtoms; ++atom)
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        const float2 pair = minus_delta[i / 4 * 4];
        gradients[atom][i] = pair.x;
        gradients[atom][i + 1] = pair.y;
      }
    if (params_.has_softcap) {
      multiply_keys<false>(gradients, shared_.v, shared_.dout[stage(count)], [](int) {});
      cap(scores, gradients, lse);
    } else {
      multiply_keys<false>(gradients, shared_.v, shared_.dout[stage(count)], [&](int slot) {
        constexpr int kAll = kScoreAtoms * kScores / 2;
#pragma unroll
        for (int pair = 0; pair < kAll; ++pair)
          if (pair * kSlots / kAll == slot) exponentiate(scores[pair % kScoreAtoms], pair / kScoreAtoms * 2, lse);
      });
    }
    if (tile(count).is_partial) hide(scores, tile(count).row);
    leave(scores, gradients);
    if (threadIdx.x == 0 && tile(count).waits_for != PlainTile::kNone)
      wait_turn(turns_of(tile(count)), tile(count).waits_for);
    __syncthreads();  // all of P and dS is here

    if (Traits::kStages == 2) add_dq(tile(count));
    add_products(dv_, shared_.weights, shared_.dout[stage(count)]);
    add_products(dk_, shared_.score_gradients, shared_.q[stage(count)]);
    if (Traits::kStages == 1) {
      __syncthreads();  // nobody reads Q or dO any more
      if (!is_last) load_queries(count + 1);
      add_dq(tile(count));  // beside the copies
    }
    if (tile(count).leaves != PlainTile::kNone) __threadfence();  // seen by whoever has the next turn
  }

  /// This lane's first query of a row of statistics.
  __device__ __forceinline__ static const float2* columns_of(const float* statistics) {
    return reinterpret_cast<const float2*>(statistics + warp() / Traits::kScoreWarps * kScoreColumns) + lane() % 4;
  }
  __device__ __forceinline__ static int score_row() {
    return warp() % Traits::kScoreWarps * kScoreRows;
  }
  __device__ __forceinline__ static int score_column() {
    return warp() / Traits::kScoreWarps * kScoreColumns;
  }

  static constexpr int kSlots = (kDim / 16 - 1) * (kScores / 8);

  /// scores (+)= keys (or values) times queries (or dO). `beside(slot)` is called between the products, for each of
  /// kSlots.
  template <bool kClears, typename Beside>
  __device__ __forceinline__ static void multiply_keys(float (&scores)[kScoreAtoms][kScores], const T* keys,
                                                       const T* queries, const Beside& beside) {
    const auto rows = matrices_down<kDim>(keys, score_row(), 0);
    const auto columns = matrices_across<kDim>(queries, score_column(), 0);
    multiply_tiles<T, kDim / 16, kClears>(
        scores,
        [&](std::uint32_t(&a)[kScoreAtoms][4], int step, int group) {
          if (group == 0)
#pragma unroll
            for (int atom = 0; atom < kScoreAtoms; ++atom) load_matrices(a[atom], rows.at(16 * atom, 2 * step));
          if (step > 0) beside((step - 1) * (kScores / 8) + group);
        },
        [&](std::uint32_t(&b)[4], int step, int group) { load_matrices(b, columns.at(16 * group, 2 * step)); });
  }

  /// Two neighbouring scores become P = exp2(score * scale - lse).
  __device__ __forceinline__ void exponentiate(float (&scores)[kScores], int i, const float2* lse) const {
    const float2 columns = lse[i / 4 * 4];
    scores[i] = exp2_approx(scores[i] * params_.exponent_scale - columns.x);
    scores[i + 1] = exp2_approx(scores[i + 1] * params_.exponent_scale - columns.y);
  }

  /// Raw scores that pass through a softcap become P, and dP - delta takes the slope 1 - tanh^2.
  __device__ __forceinline__ void cap(float (&scores)[kScoreAtoms][kScores], float (&gradients)[kScoreAtoms][kScores],
                                      const float2* lse) const {
    const float tanh_scale = params_.score_scale * 2.885390082f;  // 2 log2(e)
#pragma unroll
    for (int atom = 0; atom < kScoreAtoms; ++atom)
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const float2 columns = lse[i / 4 * 4];
        const float capped = 1.f - __fdividef(2.f, exp2_approx(scores[atom][i] * tanh_scale) + 1.f);
        scores[atom][i] = exp2_approx(capped * params_.exponent_scale - (i % 2 == 0 ? columns.x : columns.y));
        gradients[atom][i] *= 1.f - capped * capped;
      }
  }

  /// P of pairs that are not legal becomes 0.
  __device__ __forceinline__ void hide(float (&scores)[kScoreAtoms][kScores], int tile_row) const {
    const int query_row = tile_row + score_column();
#pragma unroll
    for (int atom = 0; atom < kScoreAtoms; ++atom)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = key_row() + score_row() + 16 * atom + 8 * r + lane() / 4;
        const std::uint32_t word = transposed_mask_word<kScores / 2>(params_.visibility, key, query_row, lane() % 4);
#pragma unroll
        for (int i = 2 * r; i < kScores; i += 4) {
          if ((word >> (i / 4 * 2) & 1) == 0) scores[atom][i] = 0.f;
          if ((word >> (i / 4 * 2 + 1) & 1) == 0) scores[atom][i + 1] = 0.f;
        }
      }
  }

  /// P^T and dS^T = P^T (dP^T - delta), rounded, to where all warps read them.
  __device__ __forceinline__ void leave(const float (&scores)[kScoreAtoms][kScores],
                                        const float (&gradients)[kScoreAtoms][kScores]) {
    const int row = score_row() + lane() / 4;
    const LaneAddress<kPitch> weights(shared_.weights, row, score_column() / 8);
    const LaneAddress<kPitch> score_gradients(shared_.score_gradients, row, score_column() / 8);
    const std::uint32_t column = lane() % 4 * 4;
#pragma unroll
    for (int atom = 0; atom < kScoreAtoms; ++atom)
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        const float(&p)[kScores] = scores[atom];
        const float(&d)[kScores] = gradients[atom];
        const int rows = 16 * atom + i / 2 % 2 * 8;
        store_shared(weights.at(rows, i / 4) + column, pack_pair<T>(p[i], p[i + 1]));
        store_shared(score_gradients.at(rows, i / 4) + column, pack_pair<T>(p[i] * d[i], p[i + 1] * d[i + 1]));
      }
  }

  /// sums += weights (keys x queries) times rows of Q or dO.
  __device__ __forceinline__ static void add_products(float (&sums)[kGradientAtoms][kGradients], const T* weights,
                                                      const T* queries) {
    const auto rows = matrices_down<kPitch>(weights, warp() % Traits::kGradientWarps * kGradientRows, 0);
    const auto columns = matrices_down<kDim>(queries, 0, warp() / Traits::kGradientWarps * (kGradientColumns / 8));
    multiply_tiles<T, Traits::kTileQueries / 16, false>(
        sums,
        [&](std::uint32_t(&a)[kGradientAtoms][4], int step, int group) {
          if (group == 0)
#pragma unroll
            for (int atom = 0; atom < kGradientAtoms; ++atom) load_matrices(a[atom], rows.at(16 * atom, 2 * step));
        },
        [&](std::uint32_t(&b)[4], int step, int group) {
          load_matrices_transposed(b, columns.at(16 * step, 2 * group));
        });
  }

  /// dQ = dS K of this tile, added to the accumulator, which lies as fragments do.
  __device__ __forceinline__ void add_dq(const PlainTile& tile) const {
    const int row = warp() % Traits::kDqWarps * kDqRows;
    const int column = warp() / Traits::kDqWarps * kDqColumns;
    const auto rows = matrices_across<kPitch>(shared_.score_gradients, 0, row / 8);
    const auto columns = matrices_down<kDim>(shared_.k, 0, column / 8);
    float dq[kDqAtoms][kDqColumns / 2];
    multiply_tiles<T, Traits::kTileKeys / 16, true>(
        dq,
        [&](std::uint32_t(&a)[kDqAtoms][4], int step, int group) {
          if (group == 0)
#pragma unroll
            for (int atom = 0; atom < kDqAtoms; ++atom) load_matrices_transposed(a[atom], rows.at(16 * step, 2 * atom));
        },
        [&](std::uint32_t(&b)[4], int step, int group) {
          load_matrices_transposed(b, columns.at(16 * step, 2 * group));
        });
    float* target = params_.dq + (std::int64_t{tile.head} * params_.num_blocks + tile.row / kBlock) * (kBlock * kDim) +
                    dq_index<kDim>(tile.row % kBlock + row + lane() / 4, column + lane() % 4 * 2);
#pragma unroll
    for (int atom = 0; atom < kDqAtoms; ++atom)
#pragma unroll
      for (int i = 0; i < kDqColumns / 2; i += 4)
        reduce_add(target + atom * (32 * 4) + i / 4 * (128 * 4), dq[atom][i], dq[atom][i + 1], dq[atom][i + 2],
                   dq[atom][i + 3]);
  }

  /// Splits of an item add their dK and dV in their order, if there is a planned one.
  __device__ __forceinline__ void add_key_gradients() const {
    std::int32_t* turn = nullptr;
    if (has_splits(params_) && params_.order.key_turns != nullptr) {
      turn = &params_.order.key_turns[shared_.key_unit];
      if (threadIdx.x == 0) wait_turn(turn, shared_.walk.turn());
      __syncthreads();
    }
    add_rows(params_.dk, dk_, params_.gradient_scale);
    add_rows(params_.dv, dv_, 1.f);
    if (turn == nullptr) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) pass_turn(turn, shared_.walk.turn() + 1);
  }

  __device__ __forceinline__ void add_rows(const StridedRows& target, const float (&sums)[kGradientAtoms][kGradients],
                                           float scale) const {
    const int first_row = key_row() + warp() % Traits::kGradientWarps * kGradientRows + lane() / 4;
    const int first_column = warp() / Traits::kGradientWarps * kGradientColumns + lane() % 4 * 2;
#pragma unroll
    for (int atom = 0; atom < kGradientAtoms; ++atom)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = first_row + 16 * atom + 8 * r;
        if (row >= params_.valid_key_rows) continue;
        float* values =
            static_cast<float*>(target.data) + row * target.row_stride + shared_.unit.key_head * target.head_stride;
#pragma unroll
        for (int i = 2 * r; i < kGradients; i += 4)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int column = first_column + i / 4 * 8 + c;
            if (column < params_.head_dim) atomicAdd(values + column, sums[atom][i + c] * scale);
          }
      }
  }

  Shared& shared_;
  const BackwardParams& params_;
  float dk_[kGradientAtoms][kGradients];
  float dv_[kGradientAtoms][kGradients];
};

template <typename T, int kDim, bool kCompact>
__global__ void __launch_bounds__(PlainBackward<T, kDim, kCompact>::kThreads, 1)
    attention_backward_sm80_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  PlainBackward<T, kDim, kCompact>(*reinterpret_cast<PlainBackwardShared<T, kDim, kCompact>*>(shared_bytes), params)
      .run();
}

template <typename T, int kDim, bool kCompact>
void launch_plain_backward(const BackwardParams& params, cudaStream_t stream) {
  const auto kernel = attention_backward_sm80_kernel<T, kDim, kCompact>;
  constexpr int kSharedBytes = sizeof(PlainBackwardShared<T, kDim, kCompact>);
  static_assert(kSharedBytes <= (kCompact ? kLeastSharedBytes : kPlainSharedBytes));
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "reserving shared memory for the plain attention backward kernel");
  BackwardParams plain = params;
  order_units(plain, PlainBackward<T, kDim, kCompact>::kKeyTiles);
  kernel<<<static_cast<unsigned>(plain.num_units), PlainBackward<T, kDim, kCompact>::kThreads, kSharedBytes, stream>>>(
      plain);
  check_cuda(cudaGetLastError(), "launching the plain attention backward kernel");
}

template <typename T, int kDim>
void launch_backward_sm80(const BackwardParams& params, int shared_bytes, cudaStream_t stream) {
  if (shared_bytes < kPlainSharedBytes)
    launch_plain_backward<T, kDim, true>(params, stream);
  else
    launch_plain_backward<T, kDim, false>(params, stream);
}

}  // namespace marble::cuda

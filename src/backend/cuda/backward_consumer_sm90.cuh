// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A consumer warpgroup of the Hopper backward kernel for head dimensions up to 128: it owns 64 of the tile's 128 keys.
// Scores are computed transposed, S^T = K Q^T and dP^T = V dO^T, keys down and queries across. So P^T and dS^T leave
// the softmax as the A operands of dV += P^T dO and dK += dS^T Q, in registers; only dS passes through shared memory,
// where both warpgroups' halves meet for dQ = dS K. dS has two buffers, so one barrier a tile suffices: who writes a
// buffer again has passed the barrier that follows every read of it.

#include "backend/cuda/backward_fragments.cuh"
#include "backend/cuda/backward_shared.cuh"

namespace marble::cuda {

template <typename T, int kDim>
class BackwardConsumer : private BackwardConsumerBase<T, kDim> {
 public:
  using Traits = BackwardTraits<kDim>;
  using Base = BackwardConsumerBase<T, kDim>;
  static constexpr int kScores = Traits::kTileQueries / 2;  // accumulators that a thread holds: of S^T and dP^T,
  static constexpr int kParts = Traits::kTileQueries / 64;  // packed 64 queries at a time, for less overlap of lives
  static constexpr int kGradients = kDim / 2;               // of dK and dV,
  static constexpr int kDq = Traits::kDqColumns / 2;        // and of dQ

  __device__ __forceinline__ BackwardConsumer(BackwardShared<T, kDim>& shared, const BackwardParams& params, int group)
      : Base(shared, params, group) {}

  __device__ __forceinline__ void run() {
    if (params_.has_softcap)
      attend_units<true>();
    else
      attend_units<false>();
  }

 private:
  using Base::group;
  using Base::params_;
  using Base::parity;
  using Base::rings_;
  using Base::shared_;
  using Base::stage;
  using Base::thread;

  using Gradients = KeyGradients<kGradients>;

  template <bool kSoftcap>
  __device__ __forceinline__ void attend_units() {
    Gradients sums;
    while (this->begin_unit(sums)) {
      bool is_last;
      do {
        const QueryTile tile = this->wait_queries();
        // Two bodies, so that no branch lies between an asynchronous product and its wait. Softcap takes the longer
        // one.
        if (kSoftcap || (tile.flags & QueryTile::kPartial) != 0)
          is_last = attend_tile<true, kSoftcap>(tile, sums);
        else
          is_last = attend_tile<false, kSoftcap>(tile, sums);
      } while (!is_last);
      this->end_unit(group() * 64, 0, sums);
    }
  }

  /// True when the unit ends with this tile.
  template <bool kMasked, bool kSoftcap>
  __device__ __forceinline__ bool attend_tile(const QueryTile& tile, Gradients& sums) {
    keep_apart<kMasked ? 1 : 0>();
    std::uint32_t mask[2] = {~0u, ~0u};
    if constexpr (kMasked)
      this->read_mask(tile, group() * 64 + fragment_row(thread()), thread() % 4,
                      Traits::kQueryTiles > 1 ? tile.part * Traits::kTileQueries / 4 : 0, mask);
    float scores[kScores], gradients[kScores];
    std::uint32_t weights[kParts][16], score_gradients[kParts][16];
    const float2* lse = reinterpret_cast<const float2*>(shared_.lse[stage()]) + thread() % 4;
    const float2* minus_delta = reinterpret_cast<const float2*>(shared_.minus_delta[stage()]) + thread() % 4;
    barrier_wait(&shared_.dout_full[stage()], parity());
    load_columns(gradients, minus_delta);
    pin_registers(gradients);
    start_product(scores, shared_.k, shared_.q[stage()], 0);
    start_product(gradients, shared_.v, shared_.dout[stage()], 1);
    wgmma_wait<1>();
    pin_registers(scores);
    if constexpr (!kSoftcap) exponentiate<kMasked>(scores, lse, params_.exponent_scale, mask);
    wgmma_wait<0>();
    pin_registers(gradients);
    if constexpr (kSoftcap)
      differentiate_capped(gradients, scores, lse, params_, mask);
    else
      differentiate(gradients, scores);
    T* const exchange = shared_.exchange[stage()];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      pack<T>(weights[part], scores + part * 32);
      start_register_product(sums.dv, weights[part], shared_.dout[stage()] + part * 64 * 64);
      pack<T>(score_gradients[part], gradients + part * 32);
      store_transposed(exchange + (group() * Traits::kTileQueries + part * 64) * 64, score_gradients[part]);
    }
    fence_shared_for_copy_engine();
    named_barrier_sync(kExchangeBarrier, 128 * kBackwardGroups);
    float dq[kDq];
    start_dq(dq, exchange);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      start_register_product(sums.dk, score_gradients[part], shared_.q[stage()] + part * 64 * 64);
    wgmma_wait<kParts>();
    pin_registers(sums.dv);
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin_registers(weights[part]);
    pin_registers(dq);
    this->release(&shared_.dout_empty[stage()]);
    hand_over(dq);
    wgmma_wait<0>();
    pin_registers(sums.dk);
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin_registers(score_gradients[part]);
    const bool is_last = (shared_.tile[stage()].flags & QueryTile::kEndsUnit) != 0;
    this->release(&shared_.q_empty[stage()]);
    rings_.advance(ConsumerRings::kTiles);
    keep_apart<kMasked ? 1 : 0>();
    return is_last;
  }

  /// Leaves this group's part of dQ to the copy engine, in the order in which the threads hold it.
  __device__ __forceinline__ void hand_over(const float (&dq)[kDq]) {
    wait_part_taken();
    float4* target = reinterpret_cast<float4*>(shared_.dq[group()]) + thread();
#pragma unroll
    for (int i = 0; i < kDq; i += 4) target[i / 4 * 128] = make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    fence_shared_for_copy_engine();
    this->release(&shared_.dq_full[stage()]);
  }

  /// One buffer: until the parts of the tile before have been read.
  __device__ __forceinline__ void wait_part_taken() {
    barrier_wait(&shared_.dq_empty[0], stage() ^ 1);
  }

  /// This group's 64 keys times all queries of the tile.
  __device__ __forceinline__ void start_product(float (&scores)[kScores], const T* keys, const T* queries,
                                                int accumulate) {
    const std::uint64_t rows = fresh(matrix_descriptor(keys + group() * 64 * 64, 1024, 0));
    const std::uint64_t columns = fresh(matrix_descriptor(queries, 1024, 0));
    wgmma_fence();
#pragma unroll
    for (int column = 0; column < kDim; column += 16) {
      const std::uint32_t inside = (column % 64) * 2;
      wgmma_shared<T>(scores, advance(rows, column / 64 * Traits::kTileKeys * 128 + inside),
                      advance(columns, column / 64 * Traits::kTileQueries * 128 + inside), accumulate || column > 0);
    }
    wgmma_commit();
  }

  /// sums += (64 keys x queries, in registers) times the rows of Q or dO.
  __device__ __forceinline__ void start_register_product(float (&sums)[kGradients], std::uint32_t (&weights)[16],
                                                         const T* rows) {
    const std::uint64_t operand = fresh(matrix_descriptor(rows, 1024, Traits::kTileQueries * 128));
    pin_registers(sums);
    pin_registers(weights);
    wgmma_fence();
#pragma unroll
    for (int query = 0; query < 64; query += 16)
      wgmma_registers<T>(sums, &weights[query / 4], advance(operand, query * 128));
    wgmma_commit();
  }

  /// This group's part of dS K: its own 64 columns, or with tiles of 128 queries its own 64 rows.
  __device__ __forceinline__ void start_dq(float (&dq)[kDq], const T* exchange) {
    const T* rows = exchange + (Traits::kDqByRows ? group() * 64 * 64 : 0);
    const T* columns = shared_.k + (Traits::kDqByRows ? 0 : group() * Traits::kTileKeys * Traits::kDqColumns);
    const std::uint64_t score_gradients = fresh(matrix_descriptor(rows, 1024, 0));
    const std::uint64_t keys = fresh(matrix_descriptor(columns, 1024, Traits::kTileKeys * 128));
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < Traits::kTileKeys; key += 16)
      wgmma_shared_transposed<T>(dq, advance(score_gradients, key / 64 * Traits::kTileQueries * 128 + key % 64 * 2),
                                 advance(keys, key * 128), key > 0);
    wgmma_commit();
  }

  /// dS^T in registers becomes dS in shared memory, a row a query, this group's keys across.
  __device__ __forceinline__ void store_transposed(T* box, const std::uint32_t (&fragments)[16]) {
    const int lane = thread() % 32;
    const int chunk = (thread() / 32 * 2 + lane / 8 % 2) ^ (lane % 8);
    T* row = box + (lane / 16 * 8 + lane % 8) * 64 + chunk * 8;
#pragma unroll
    for (int i = 0; i < 16; i += 4) store_matrices_transposed(row + i * 4 * 64, &fragments[i]);
  }
};

}  // namespace marble::cuda

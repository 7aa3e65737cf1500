// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A consumer warpgroup of the Hopper backward kernel for head dimensions up to 128: it owns 64 of the tile's 128 keys.
// Scores are computed transposed, S^T = K Q^T and dP^T = V dO^T, keys down and queries across. So P^T and dS^T leave
// the softmax as the A operands of dV += P^T dO and dK += dS^T Q, in registers; only dS passes through shared memory,
// where both warpgroups' halves meet for dQ = dS K. dS has two buffers, so one barrier a tile suffices: who writes a
// buffer again has passed the barrier that follows every read of it, or has seen the queries gone that went with it.

#include "backend/cuda/backward_fragments.cuh"
#include "backend/cuda/backward_shared.cuh"

namespace marble::cuda {

/// `kMakesDq`: it also makes dQ, of 64 rows.
template <typename T, int kDim, bool kMakesDq>
class BackwardConsumer : private BackwardConsumerBase<T, kDim> {
 public:
  using Traits = BackwardTraits<kDim>;
  using Base = BackwardConsumerBase<T, kDim>;
  static constexpr int kScores = Traits::kTileQueries / 2;  // accumulators that a thread holds: of S^T and dP^T,
  static constexpr int kParts = Traits::kTileQueries / 64;  // packed 64 queries at a time, for less overlap of lives
  static constexpr int kGradients = kDim / 2;               // of dK and dV,
  static constexpr int kDq = Traits::kDqColumns / 2;        // and of dQ
  static constexpr bool kMakesAllDq = kMakesDq && Traits::kDqMakers == 1;
  /// LSE is loaded before scores are waited for. With tiles of 128 queries there are no registers for it beside S and
  /// dP.
  static constexpr bool kLoadsLseFirst = kParts == 1;

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

  /// What a tile's products read and write, beside the unit's sums, and LSE.
  struct Fragments {
    float2 lse[kScores / 4];
    float scores[kScores];                                           // S^T, then P^T
    float gradients[kScores];                                        // dP^T - delta, then dS^T
    std::uint32_t weights[kParts][16], score_gradients[kParts][16];  // P^T and dS^T as operands
    float dq[kDq];
  };

  template <bool kSoftcap>
  __device__ __forceinline__ void attend_units() {
    Gradients sums;
    while (this->begin_unit(sums)) {
      bool is_last;
      do {
        const QueryTile tile = this->wait_queries();
        // Two bodies, so that no branch lies between an asynchronous product and its wait. Softcap takes the masked
        // one.
        if (kSoftcap || (tile.flags & QueryTile::kPartial) != 0)
          is_last = attend_masked<kSoftcap>(tile, sums);
        else
          is_last = attend_run(tile.flags, sums);
      } while (!is_last);
      this->end_unit(group() * 64, 0, sums);
    }
  }

  /// True when the unit ends with this tile.
  template <bool kSoftcap>
  __device__ __forceinline__ bool attend_masked(const QueryTile& tile, Gradients& sums) {
    keep_apart<1>();
    std::uint32_t mask[2] = {~0u, ~0u};
    this->read_mask(tile, group() * 64 + fragment_row(thread()), thread() % 4,
                    Traits::kQueryTiles > 1 ? tile.part * Traits::kTileQueries / 4 : 0, mask);
    Fragments fragments;
    load_statistics(fragments);
    start_scores(fragments, stage());
    attend_tile<true, kSoftcap>(fragments, mask, sums);
    end_dk<0>(fragments, sums);
    const bool is_last = end_tile();
    keep_apart<1>();
    return is_last;
  }

  /// A full tile and those that follow it in a row. Each one's scores are asked for before the one before has ended.
  /// True when the unit ends with the last.
  __device__ __forceinline__ bool attend_run(int flags, Gradients& sums) {
    keep_apart<0>();
    constexpr std::uint32_t kAll[2] = {~0u, ~0u};
    Fragments fragments;
    start_scores(fragments, stage());
#pragma unroll 1
    for (;;) {
      flags = __shfl_sync(~0u, flags, 0);  // so that ptxas knows it uniform
      load_statistics(fragments);
      attend_tile<false, false>(fragments, kAll, sums);
      if ((flags & QueryTile::kFullFollows) == 0) break;
      barrier_wait(&shared_.q_full[stage() ^ 1], parity() ^ stage());
      if constexpr (kMakesDq) {
        end_dk<0>(fragments, sums);
        start_scores(fragments, stage() ^ 1);
      } else {  // which leaves registers for dS and the next S
        start_scores(fragments, stage() ^ 1);
        end_dk<1>(fragments, sums);
      }
      end_tile();
      flags = shared_.tile[stage()].flags;
    }
    end_dk<0>(fragments, sums);
    const bool is_last = end_tile();
    keep_apart<0>();
    return is_last;
  }

  /// From scores that are asked for to dK that is.
  template <bool kMasked, bool kSoftcap>
  __device__ __forceinline__ void attend_tile(Fragments& fragments, const std::uint32_t (&mask)[2], Gradients& sums) {
    auto& [lse, scores, gradients, weights, score_gradients, dq] = fragments;
    start_product(gradients, shared_.v, shared_.dout[stage()], 1);
    wgmma_wait<1>();
    if constexpr (!kLoadsLseFirst && !kSoftcap) load_columns(lse, columns_of(shared_.lse));
    pin_registers(scores);
    if constexpr (!kSoftcap) exponentiate<kMasked>(scores, lse, params_.exponent_scale, mask);
    wgmma_wait<0>();
    pin_registers(gradients);
    if constexpr (kSoftcap)
      differentiate_capped(gradients, scores, columns_of(shared_.lse), params_, mask);
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
    if constexpr (kMakesDq)
      named_barrier_sync(kExchangeBarrier + stage(), 128 * kBackwardGroups);
    else
      named_barrier_arrive(kExchangeBarrier + stage(), 128 * kBackwardGroups);
    if constexpr (kMakesAllDq) {
      end_dv<0>(fragments, sums);
      copy_registers(weights[0], score_gradients[0]);
    }
    if constexpr (kMakesDq) start_dq(dq, exchange);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      start_register_product(sums.dk, dk_operand(fragments, part), shared_.q[stage()] + part * 64 * 64);
    if constexpr (!kMakesAllDq) end_dv<kParts>(fragments, sums);
    if constexpr (kMakesDq) {
      wgmma_wait<kParts>();
      pin_registers(dq);
      hand_over(dq);
    }
  }

  /// `kPending`, here and below: products asked for later that need not be there.
  template <int kPending>
  __device__ __forceinline__ void end_dv(Fragments& fragments, Gradients& sums) {
    wgmma_wait<kPending>();
    pin_registers(sums.dv);
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin_registers(fragments.weights[part]);
    this->release(&shared_.dout_empty[stage()]);
  }

  template <int kPending>
  __device__ __forceinline__ void end_dk(Fragments& fragments, Gradients& sums) {
    wgmma_wait<kPending>();
    pin_registers(sums.dk);
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin_registers(dk_operand(fragments, part));
  }

  /// dS^T; where all of dQ is made, in the place of P^T, for dQ takes 64 registers in a row.
  __device__ __forceinline__ static std::uint32_t (&dk_operand(Fragments& fragments, int part))[16] {
    return kMakesAllDq ? fragments.weights[part] : fragments.score_gradients[part];
  }

  /// True when the unit ends with this tile.
  __device__ __forceinline__ bool end_tile() {
    const bool is_last = (shared_.tile[stage()].flags & QueryTile::kEndsUnit) != 0;
    this->release(&shared_.q_empty[stage()]);
    rings_.advance(ConsumerRings::kTiles);
    return is_last;
  }

  /// Waits for dO. dP starts at -delta.
  __device__ __forceinline__ void load_statistics(Fragments& fragments) {
    if constexpr (kLoadsLseFirst) load_columns(fragments.lse, columns_of(shared_.lse));
    barrier_wait(&shared_.dout_full[stage()], parity());
    load_accumulators(fragments.gradients, columns_of(shared_.minus_delta));
    pin_registers(fragments.gradients);
  }

  /// This lane's first query in the tile's statistics.
  __device__ __forceinline__ const float2* columns_of(
      const float (&statistics)[Traits::kStages][Traits::kTileQueries]) const {
    return reinterpret_cast<const float2*>(statistics[stage()]) + thread() % 4;
  }

  __device__ __forceinline__ void start_scores(Fragments& fragments, int of_stage) {
    start_product(fragments.scores, shared_.k, shared_.q[of_stage], 0);
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

  /// dS K, of this group's 64 rows.
  __device__ __forceinline__ void start_dq(float (&dq)[kDq], const T* exchange) {
    const std::uint64_t score_gradients = fresh(matrix_descriptor(exchange + group() * 64 * 64, 1024, 0));
    const std::uint64_t keys = fresh(matrix_descriptor(shared_.k, 1024, Traits::kTileKeys * 128));
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

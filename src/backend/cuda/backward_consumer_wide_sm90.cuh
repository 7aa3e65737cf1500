// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A consumer warpgroup of the Hopper backward kernel for head dimensions beyond 128. Both warpgroups share 64 keys:
// each computes the transposed scores of half of the tile's queries, and then half of the columns of dV, dQ and dK. So
// P and dS pass through shared memory, dS both ways round, and two barriers a tile keep writers and readers apart.

#include "backend/cuda/backward_fragments.cuh"
#include "backend/cuda/backward_shared.cuh"

namespace marble::cuda {

template <typename T, int kDim>
class WideBackwardConsumer : private BackwardConsumerBase<T, kDim> {
 public:
  using Traits = BackwardTraits<kDim>;
  using Base = BackwardConsumerBase<T, kDim>;
  static constexpr int kQueries = 32;              // of the tile's 64, that this group exponentiates
  static constexpr int kScores = kQueries / 2;     // accumulators that a thread holds: of S^T and dP^T,
  static constexpr int kColumns = kDim / 2;        // and columns of dV, dQ and dK,
  static constexpr int kGradients = kColumns / 2;  // as accumulators

  __device__ __forceinline__ WideBackwardConsumer(BackwardShared<T, kDim>& shared, const BackwardParams& params,
                                                  int group)
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
      QueryTile tile;
      do {
        tile = this->wait_queries();
        attend_tile<kSoftcap>(tile, sums);
      } while ((tile.flags & QueryTile::kEndsUnit) == 0);
      this->end_unit(0, group() * kColumns, sums);
    }
  }

  /// Masks are always applied here: 16 scores a thread are little beside 20 products of 64 x 128.
  template <bool kSoftcap>
  __device__ __forceinline__ void attend_tile(const QueryTile& tile, Gradients& sums) {
    std::uint32_t mask[2] = {~0u, ~0u};
    this->read_mask(tile, fragment_row(thread()), thread() % 4,
                    (tile.part * Traits::kTileQueries + group() * kQueries) / 4, mask);
    float scores[kScores], gradients[kScores];
    std::uint32_t weights[kScores / 2], score_gradients[kScores / 2];
    const int first = group() * kQueries / 2 + thread() % 4;
    const float2* lse = reinterpret_cast<const float2*>(shared_.lse[stage()]) + first;
    const float2* minus_delta = reinterpret_cast<const float2*>(shared_.minus_delta[stage()]) + first;
    barrier_wait(&shared_.dout_full[stage()], parity());
    load_accumulators(gradients, minus_delta);
    pin_registers(gradients);
    start_product(scores, shared_.k, shared_.q[stage()], 0);
    start_product(gradients, shared_.v, shared_.dout[stage()], 1);
    wgmma_wait<1>();
    pin_registers(scores);
    if constexpr (!kSoftcap) {
      float2 columns[kScores / 4];
      load_columns(columns, lse);
      exponentiate<true>(scores, columns, params_.exponent_scale, mask);
    }
    wgmma_wait<0>();
    pin_registers(gradients);
    if constexpr (kSoftcap)
      differentiate_capped(gradients, scores, lse, params_, mask);
    else
      differentiate(gradients, scores);
    pack<T>(weights, scores);
    pack<T>(score_gradients, gradients);
    exchange(weights, score_gradients);

    T* const query_major = shared_.exchange[0];
    T* const weights_of_keys = shared_.exchange[1];
    T* const gradients_of_keys = shared_.exchange[2];
    float dq[kGradients];
    start_columns(sums.dv, weights_of_keys, shared_.dout[stage()], 1);
    start_columns(dq, query_major, shared_.k, 0);
    start_columns(sums.dk, gradients_of_keys, shared_.q[stage()], 1);
    wgmma_wait<1>();
    pin_registers(sums.dv);
    pin_registers(dq);
    this->release(&shared_.dout_empty[stage()]);
    if (params_.order.query_turns != nullptr) barrier_wait(&shared_.dq_full[stage()], parity());
    add_dq_tile(params_.dq, shared_.tile[stage()].dq_tile, Traits::kTileQueries * kDim, group(), thread(), dq);
    if (params_.order.query_turns != nullptr) this->release(&shared_.dq_empty[stage()]);
    wgmma_wait<0>();
    pin_registers(sums.dk);
    this->release(&shared_.q_empty[stage()]);
    rings_.advance(ConsumerRings::kTiles);
    named_barrier_sync(kExchangeBarrier, 128 * kBackwardGroups);  // everyone has read the exchange
  }

  /// 64 keys times this group's queries.
  __device__ __forceinline__ void start_product(float (&scores)[kScores], const T* keys, const T* queries,
                                                int accumulate) {
    const std::uint64_t rows = fresh(matrix_descriptor(keys, 1024, 0));
    const std::uint64_t columns = fresh(matrix_descriptor(queries + group() * kQueries * 64, 1024, 0));
    wgmma_fence();
#pragma unroll
    for (int column = 0; column < kDim; column += 16) {
      const std::uint32_t inside = (column % 64) * 2;
      wgmma_shared<T>(scores, advance(rows, column / 64 * Traits::kTileKeys * 128 + inside),
                      advance(columns, column / 64 * Traits::kTileQueries * 128 + inside), accumulate || column > 0);
    }
    wgmma_commit();
  }

  /// sums (+)= 64 x 64 weights times this group's columns of 64 rows.
  __device__ __forceinline__ void start_columns(float (&sums)[kGradients], const T* weights, const T* rows,
                                                int accumulate) {
    const std::uint64_t left = fresh(matrix_descriptor(weights, 1024, 0));
    const std::uint64_t right = fresh(matrix_descriptor(rows + group() * kColumns * 64, 1024, 64 * 128));
    pin_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 64; k += 16)
      wgmma_shared_transposed<T>(sums, advance(left, k * 2), advance(right, k * 128), accumulate || k > 0);
    wgmma_commit();
  }

  /// Puts this group's half of P and dS where both groups read them.
  __device__ __forceinline__ void exchange(const std::uint32_t (&weights)[kScores / 2],
                                           const std::uint32_t (&score_gradients)[kScores / 2]) {
    const int lane = thread() % 32;
    const int key = thread() / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < kScores / 2; i += 4) {
      const int query = group() * kQueries + i * 4;
      const int query_row = query + lane / 16 * 8 + lane % 8;
      const int key_chunk = (thread() / 32 * 2 + lane / 8 % 2) ^ (lane % 8);
      store_matrices_transposed(&shared_.exchange[0][query_row * 64 + key_chunk * 8], &score_gradients[i]);
      const int query_chunk = (query / 8 + lane / 16) ^ (lane % 8);
      store_matrices(&shared_.exchange[1][key * 64 + query_chunk * 8], &weights[i]);
      store_matrices(&shared_.exchange[2][key * 64 + query_chunk * 8], &score_gradients[i]);
    }
    fence_shared_for_copy_engine();
    named_barrier_sync(kExchangeBarrier, 128 * kBackwardGroups);
  }
};

}  // namespace marble::cuda

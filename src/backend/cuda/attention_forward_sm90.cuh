// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Forward attention on Hopper, over a rank plan's items. One persistent CTA per multiprocessor, three warpgroups:
//   loader      a warp that feeds Q, K and V through the copy engine, a warp that draws units from an atomic counter
//               ahead of everyone, and two warps that turn visible ranges into mask bits, partial blocks in turn;
//   consumers   two warpgroups of 64 query rows: S = Q K^T, online softmax in registers, O += P V.
// Within a consumer the product S of the next tile is issued before O += P V of this one, so that the tensor cores work
// while exponentials are computed; at head dimension 64, where registers hold two tiles of scores, full tiles in a row
// have S a further tile ahead. Barriers come in full/empty pairs over rings of stages; `parity` flips at wrap.

#include "backend/cuda/attention_epilogue.cuh"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/forward_loader_sm90.cuh"
#include "backend/cuda/online_softmax.cuh"
#include "backend/cuda/wgmma.cuh"

namespace marble::cuda {

/// One consumer warpgroup. Its work is one stream of tiles that runs on across units: the product O += P V of a tile
/// waits for the scores of the next one to be asked for, also when that one belongs to the next unit.
template <typename T, int kDim>
class Consumer {
 public:
  using Traits = ForwardTraits<T, kDim>;
  static constexpr int kScores = Traits::kTileKeys / 2;  // accumulators of S and O that a thread holds
  static constexpr int kOutputs = kDim / 2;

  __device__ __forceinline__ Consumer(ForwardShared<T, kDim>& shared, const ForwardParams& params, int group)
      : shared_(shared), params_(params), owner_{group, static_cast<int>(threadIdx.x % 128)} {}

  __device__ __forceinline__ void run() {
    if (params_.score_map == ScoreMap::none)
      attend_units<false>();
    else
      attend_units<true>();
  }

 private:
  static constexpr int kTurnBarrier = 1;  // and 2: one a group
  // Whether full tiles in a row have a loop of their own; where a block is two tiles they have none.
  static constexpr bool kHasRuns = Traits::kHalves == 1;

  /// What a unit leaves behind for the product that is still due.
  struct Fragments {
    float output[kOutputs];
    std::uint32_t probabilities[kScores / 2];
    SoftmaxState softmax;
    float rescale[2];
  };

  template <bool kMapped>
  __device__ __forceinline__ void attend_units() {
    // The first group may issue at once; from then on each issue lets the other group go.
    if (Traits::kPingPong && owner_.group == 1) named_barrier_arrive(kTurnBarrier, 256);
    Fragments fragments;
    UnitMessage unit = receive();
    while (unit.index >= 0) {
      if (unit.first_tile() == kNoTile) {
        begin_output(unit, fragments.output);
        finish(unit, fragments.output, begin_softmax(unit));
        unit = receive();
      } else {
        unit = attend_stream<kMapped>(unit, fragments);
      }
    }
    if (Traits::kPingPong && owner_.group == 0) named_barrier_sync(kTurnBarrier, 256);
  }

  /// Units with tiles, one after the other; returns the message after the last.
  template <bool kMapped>
  __device__ __forceinline__ UnitMessage attend_stream(UnitMessage unit, Fragments& fragments) {
    UnitMessage next = unit;
    int tile = first_tile<kMapped>(unit, fragments);
    for (;;) {
      SoftmaxState due;
      const bool crosses = tile == kNoTile;
      if (crosses) {
        release(&shared_.q_empty[q_.stage]);
        q_.advance();
        next = receive();
        if (next.first_tile() == kNoTile) break;
        due = fragments.softmax;
        fragments.softmax = begin_softmax(next);
        tile = next.first_tile();
        wait_queries();
      }
      if (kHasRuns && !kMapped && tile >= kShortestRun)
        tile = attend_run(__shfl_sync(~0u, tile, 0), fragments);
      else if (tile != kPartialTile)
        tile = next_tile<false, kMapped>(fragments);
      else
        tile = next_tile<true, kMapped>(fragments);
      if (crosses) {
        finish(unit, fragments.output, due);
        begin_output(next, fragments.output);
        unit = next;
      }
    }
    rescale_output<skips_still_tiles(kDim)>(fragments.output, fragments.rescale);
    start_output(fragments);
    end_output(fragments);
    finish(unit, fragments.output, fragments.softmax);
    return next;
  }

  __device__ __forceinline__ UnitMessage receive() {
    barrier_wait(&shared_.work_full[work_.stage], work_.parity);
    const UnitMessage message = shared_.work[work_.stage];
    release(&shared_.work_empty[work_.stage]);
    work_.advance();
    return message;
  }

  __device__ __forceinline__ UnitOutput output_of(const UnitMessage& unit) const {
    return unit_output(params_, unit.index, unit.head, unit.block(), unit.flags());
  }

  __device__ __forceinline__ SoftmaxState begin_softmax(const UnitMessage& message) {
    const UnitOutput unit = output_of(message);
    return unit.starts_empty ? empty_softmax_state() : load_softmax_state<kDim>(unit.state<kDim>(), owner_);
  }

  __device__ __forceinline__ void begin_output(const UnitMessage& message, float (&output)[kOutputs]) {
    const UnitOutput unit = output_of(message);
    if (unit.starts_empty) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) output[i] = 0.f;
    } else {
      load_output_state(unit.state<kDim>(), owner_, output);
    }
  }

  __device__ __forceinline__ void finish(const UnitMessage& message, const float (&output)[kOutputs],
                                         const SoftmaxState& softmax) {
    const UnitOutput unit = output_of(message);
    if (unit.finishes)
      write_output<T, kDim, true>(params_, unit, owner_, output, softmax);
    else
      store_state(unit.state<kDim>(), owner_, output, softmax);
  }

  /// S and softmax of a unit's first tile with no product due. Both return the kind of the tile after theirs.
  template <bool kMapped>
  __device__ __forceinline__ int first_tile(const UnitMessage& unit, Fragments& fragments) {
    float scores[kScores];
    begin_output(unit, fragments.output);
    fragments.softmax = begin_softmax(unit);
    wait_queries();
    const int next = wait_keys();
    start_scores(scores);
    end_scores<0>(scores);
    if constexpr (kMapped) map_scores(scores, params_.score_map, params_.score_scale);
    if (unit.first_tile() == kPartialTile) mask_scores(scores);
    finish_half();
    update_softmax<true, skips_still_tiles(kDim)>(fragments.softmax, scores, fragments.rescale, params_.exponent_scale);
    pack_probabilities<T>(fragments.probabilities, scores);
    return next;
  }

  /// S and softmax of a further tile, over O += P V of the tile before it.
  template <bool kPartial, bool kMapped>
  __device__ __forceinline__ int next_tile(Fragments& fragments) {
    keep_apart<kPartial ? 1 : 0>();
    const int next = attend_tile<kPartial, kMapped>(fragments);
    keep_apart<kPartial ? 1 : 0>();
    return next;
  }

  template <bool kPartial, bool kMapped>
  __device__ __forceinline__ int attend_tile(Fragments& fragments) {
    float scores[kScores];
    const int next = wait_keys();
    take_turn();
    start_scores(scores);
    rescale_output<skips_still_tiles(kDim)>(fragments.output, fragments.rescale);
    start_output(fragments);
    pass_turn();
    end_scores<1>(scores);
    if constexpr (kMapped) map_scores(scores, params_.score_map, params_.score_scale);
    if constexpr (kPartial) mask_scores(scores);
    finish_half();
    update_softmax<kPartial, skips_still_tiles(kDim)>(fragments.softmax, scores, fragments.rescale,
                                                      params_.exponent_scale);
    finish_softmax_before_wait(fragments.softmax);
    end_output(fragments);
    pack_probabilities<T>(fragments.probabilities, scores);
    return next;
  }

  /// Full tiles in a row, `tiles` of them or one less. Nothing else is in the loop, or warps wait for instructions at
  /// each jump over it. Returns the kind of the tile after them.
  __device__ __forceinline__ int attend_run(int tiles, Fragments& fragments) {
    if constexpr (Traits::kScoresAhead) return attend_run_ahead(tiles, fragments);
    int next = kNoTile;
#pragma unroll 1
    for (; tiles > 0; --tiles) next = attend_tile<false, false>(fragments);
    return next;
  }

  /// The scores of each tile are in flight over the softmax of the one before; no wait stands between the products and
  /// the softmax, so that ptxas weaves one into the others.
  __device__ __forceinline__ int attend_run_ahead(int tiles, Fragments& fragments) {
    float scores[2][kScores];
    int next = wait_keys();
    start_scores(scores[0]);
    end_scores<0>(scores[0]);
    for (; tiles >= kShortestRun; tiles -= 2) {
      wait_keys();
      run_tile<true>(fragments, scores[0], scores[1]);
      next = wait_keys();
      run_tile<true>(fragments, scores[1], scores[0]);
    }
    run_tile<false>(fragments, scores[0], scores[1]);
    return next;
  }

  /// Softmax of a tile whose scores are there, over O += P V of the tile before it and S of the tile after it.
  template <bool kAhead>
  __device__ __forceinline__ void run_tile(Fragments& fragments, float (&scores)[kScores], float (&ahead)[kScores]) {
    if constexpr (kAhead) start_scores(ahead);
    rescale_output<skips_still_tiles(kDim)>(fragments.output, fragments.rescale);
    start_output(fragments);
    update_softmax<false, skips_still_tiles(kDim)>(fragments.softmax, scores, fragments.rescale,
                                                   params_.exponent_scale);
    finish_softmax_before_wait(fragments.softmax);
    if constexpr (kAhead) end_scores<0>(ahead);
    end_output(fragments);
    pack_probabilities<T>(fragments.probabilities, scores);
  }

  __device__ __forceinline__ void wait_queries() {
    barrier_wait(&shared_.q_full[q_.stage], q_.parity);
    half_ = 0;
  }

  __device__ __forceinline__ int wait_keys() {
    barrier_wait(&shared_.k_full[k_.stage], k_.parity);
    return shared_.next_tile[k_.stage];
  }

  __device__ __forceinline__ void start_scores(float (&scores)[kScores]) {
    const T* rows = shared_.q[q_.stage] + owner_.group * 64 * 64;  // this group's 64
    const std::uint64_t queries = fresh(matrix_descriptor(rows, 1024, 0));
    const std::uint64_t keys = fresh(matrix_descriptor(shared_.k[k_.stage], 1024, 0));
    wgmma_fence();
#pragma unroll
    for (int column = 0; column < kDim; column += 16) {
      const std::uint32_t inside = (column % 64) * 2;
      wgmma_shared<T>(scores, advance(queries, column / 64 * kBlock * 128 + inside),
                      advance(keys, column / 64 * Traits::kTileKeys * 128 + inside), column > 0);
    }
    wgmma_commit();
  }

  /// Waits for scores, beside `kPending` products asked for later.
  template <int kPending>
  __device__ __forceinline__ void end_scores(float (&scores)[kScores]) {
    wgmma_wait<kPending>();
    pin_registers(scores);
    release(&shared_.k_empty[k_.stage]);
    k_.advance();
  }

  __device__ __forceinline__ void start_output(Fragments& fragments) {
    barrier_wait(&shared_.v_full[v_.stage], v_.parity);
    const std::uint64_t values = fresh(matrix_descriptor(shared_.v[v_.stage], 1024, Traits::kTileKeys * 128));
    pin_registers(fragments.output);
    pin_registers(fragments.probabilities);
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < Traits::kTileKeys; key += 16)
      wgmma_registers<T>(fragments.output, &fragments.probabilities[key / 4], advance(values, key * 128));
    wgmma_commit();
  }

  __device__ __forceinline__ void end_output(Fragments& fragments) {
    wgmma_wait<0>();
    pin_registers(fragments.output);
    pin_registers(fragments.probabilities);
    release(&shared_.v_empty[v_.stage]);
    v_.advance();
  }

  __device__ __forceinline__ void mask_scores(float (&scores)[kScores]) {
    barrier_wait(&shared_.mask_full[mask_.stage], mask_.parity);
    const int word = owner_.row() * 4 + owner_.thread % 4;
    std::uint32_t words[2] = {shared_.mask[mask_.stage][word], shared_.mask[mask_.stage][word + 32]};
    if constexpr (Traits::kHalves > 1) {
      words[0] >>= half_ * Traits::kTileKeys / 4;
      words[1] >>= half_ * Traits::kTileKeys / 4;
    }
    apply_mask(scores, words);
    if (half_ == Traits::kHalves - 1) {
      release(&shared_.mask_empty[mask_.stage]);
      mask_.advance();
    }
  }

  __device__ __forceinline__ void finish_half() {
    if constexpr (Traits::kHalves > 1) half_ ^= 1;
  }

  __device__ __forceinline__ void take_turn() {
    if constexpr (Traits::kPingPong) named_barrier_sync(kTurnBarrier + owner_.group, 256);
  }

  __device__ __forceinline__ void pass_turn() {
    if constexpr (Traits::kPingPong) named_barrier_arrive(kTurnBarrier + (owner_.group ^ 1), 256);
  }

  /// This warp has read what the stage holds.
  __device__ __forceinline__ void release(std::uint64_t* empty) {
    __syncwarp();
    if (owner_.thread % 32 == 0) barrier_arrive(empty);
  }

  ForwardShared<T, kDim>& shared_;
  const ForwardParams& params_;
  const FragmentOwner owner_;
  Ring<Traits::kWorkStages> work_;
  Ring<Traits::kQueryStages> q_;
  Ring<Traits::kStages> k_, v_;
  Ring<Traits::kMaskStages> mask_;
  int half_ = 0;
};

template <typename T, int kDim>
__global__ void __launch_bounds__(384, 1)
    attention_forward_sm90_kernel(const __grid_constant__ ForwardParams params,
                                  const __grid_constant__ ForwardTensorMaps maps) {
  using Traits = ForwardTraits<T, kDim>;
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<ForwardShared<T, kDim>*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so that ptxas knows it, and what follows, uniform
  const int group = warp / 4;
  if (group == 0) {
    lower_registers<Traits::kLoaderRegisters>();
    if (warp == 0) {
      if (elect_one()) Loader<T, kDim>(shared, params, maps).run();
    } else if (warp == 1) {
      if (elect_one()) schedule(shared, params);
    } else {
      build_masks(shared, params, warp - 2, threadIdx.x % 32);
    }
  } else {
    raise_registers<Traits::kConsumerRegisters>();
    Consumer<T, kDim>(shared, params, group - 1).run();
  }
}

template <typename T, int kDim>
void launch_forward_sm90(const ForwardParams& params, const ForwardTensorMaps& maps, int num_ctas,
                         cudaStream_t stream) {
  const auto kernel = attention_forward_sm90_kernel<T, kDim>;
  constexpr int kSharedBytes = sizeof(ForwardShared<T, kDim>);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "reserving shared memory for the attention forward kernel");
  kernel<<<num_ctas, ForwardTraits<T, kDim>::kThreads, kSharedBytes, stream>>>(params, maps);
  check_cuda(cudaGetLastError(), "launching the attention forward kernel");
}

}  // namespace marble::cuda

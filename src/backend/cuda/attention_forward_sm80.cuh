// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Forward attention on any GPU from sm_80 on, over a rank plan's items: one CTA a unit, warps of 16-row atoms, mma.sync
// from swizzled shared memory. K is copied asynchronously beside the softmax and the product with V, and V beside the
// product with K. It takes any head dimension up to 256 and any alignment, and its fragments, masks and states are
// those of the Hopper kernel.

#include "backend/cuda/attention_epilogue.cuh"
#include "backend/cuda/attention_forward.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/key_run.hpp"
#include "backend/cuda/online_softmax.cuh"
#include "backend/cuda/tile_mask.cuh"
#include "backend/cuda/tile_walk.cuh"
#include "backend/cuda/warp_product.cuh"

namespace marble::cuda {

template <int kDim>
struct PlainForwardTraits {
  static constexpr int kTileKeys = kDim == 64 ? 128 : 64;  // as many as the registers of their scores allow
  static constexpr int kAtoms = kDim > 128 ? 1 : 2;        // of 16 rows a warp: two share each K and V fragment
  static constexpr int kWarps = kBlock / 16 / kAtoms;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kCtas = kDim > 128 ? 1 : 2;  // a multiprocessor
  /// Single atoms leave registers for their queries, and K and V take the place of Q in shared memory: half the reads
  /// of a step and 64 KB less.
  static constexpr bool kHoldsQueries = kAtoms == 1;
};

/// One thread walks the runs, one ahead, in shared memory: the fragments need all registers.
template <typename T, int kDim>
struct PlainForwardShared {
  using Traits = PlainForwardTraits<kDim>;
  static constexpr int kKeyTile = Traits::kTileKeys * kDim;
  alignas(128) T tiles[(Traits::kHoldsQueries ? 0 : kBlock * kDim) + 2 * kKeyTile];
  alignas(16) std::uint32_t mask[kMaskWords];
  BlockWalk walk;
  KeyRun next;
  bool is_taken;  // everyone has read `next`, or will before the next barrier
  int query_block;
  int key_head;

  __device__ __forceinline__ T* q() { return tiles; }
  __device__ __forceinline__ T* k() { return v() - kKeyTile; }
  __device__ __forceinline__ T* v() { return tiles + sizeof(tiles) / sizeof(T) - kKeyTile; }

  __device__ __forceinline__ void advance() {
    int begin = 0, end = 0;
    const TileKind kind = walk.next_run(begin, end);
    next = KeyRun::of_blocks(begin, end, kind);
    is_taken = false;
  }
};

/// The fragments of one warp: kAtoms times the fragments of online_softmax.cuh.
template <typename T, int kDim>
class PlainForwardWarp {
 public:
  using Shared = PlainForwardShared<T, kDim>;
  using Traits = PlainForwardTraits<kDim>;
  static constexpr int kAtoms = Traits::kAtoms;
  static constexpr int kScores = Traits::kTileKeys / 2;
  static constexpr int kOutputs = kDim / 2;

  __device__ __forceinline__ PlainForwardWarp(Shared& shared, const ForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void begin(const UnitOutput& unit) {
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      softmax_[atom] = empty_softmax_state();
      if (unit.starts_empty) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) output_[atom][i] = 0.f;
      } else {
        load_output_state(unit.state<kDim>(), owner(atom), output_[atom]);
        softmax_[atom] = load_softmax_state<kDim>(unit.state<kDim>(), owner(atom));
      }
    }
  }

  __device__ __forceinline__ void finish(const UnitOutput& unit) {
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      if (unit.finishes)
        write_output<T, kDim, false>(params_, unit, owner(atom), output_[atom], softmax_[atom]);
      else
        store_state(unit.state<kDim>(), owner(atom), output_[atom], softmax_[atom]);
    }
  }

  __device__ __forceinline__ void hold_queries() {
    const auto rows = matrices_down<kDim>(shared_.q(), first_row(0), 0);
#pragma unroll
    for (int step = 0; step < kHeld; ++step) load_matrices(held_[step], rows.at(0, 2 * step));
  }

  /// S = Q K^T of the tile in shared memory.
  __device__ __forceinline__ void multiply_keys() {
    const auto rows = matrices_down<kDim>(shared_.q(), first_row(0), 0);
    const auto columns = matrices_across<kDim>(shared_.k(), 0, 0);
    multiply_tiles<T, kDim / 16, true>(
        scores_,
        [&](std::uint32_t(&a)[kAtoms][4], int step, int group) {
          if (group != 0) return;
#pragma unroll
          for (int atom = 0; atom < kAtoms; ++atom) {
            if constexpr (Traits::kHoldsQueries) {
#pragma unroll
              for (int i = 0; i < 4; ++i) a[atom][i] = held_[step][i];
            } else {
              load_matrices(a[atom], rows.at(16 * atom, 2 * step));
            }
          }
        },
        [&](std::uint32_t(&b)[4], int step, int group) { load_matrices(b, columns.at(16 * group, 2 * step)); });
  }

  /// `key` is the tile's first one, in its block.
  __device__ __forceinline__ void apply_masks(bool is_partial, int key) {
    if (params_.score_map == ScoreMap::none && !is_partial) return;
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      if (params_.score_map != ScoreMap::none) map_scores(scores_[atom], params_.score_map, params_.score_scale);
      if (is_partial) {
        const int word = owner(atom).row() * 4 + static_cast<int>(thread_index() % 4);
        const std::uint32_t words[2] = {shared_.mask[word] >> key / 4, shared_.mask[word + 32] >> key / 4};
        apply_mask(scores_[atom], words);
      }
    }
  }

  /// Raises the maxima by the tile's.
  __device__ __forceinline__ void raise() {
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      float tile_max[2];
      find_maxima(scores_[atom], tile_max);
      if (!skips_still_tiles(kDim) || any_raises(softmax_[atom], tile_max)) {
        float rescale[2];
        raise_maxima(softmax_[atom], tile_max, params_.exponent_scale, rescale);
        rescale_output<false>(output_[atom], rescale);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        subtracted_[atom][r] = max_exponent(softmax_[atom].row_max[r], params_.exponent_scale);
    }
  }

  /// O += P V of the tile in shared memory. The exponentials of 16 keys are computed between the products of those
  /// before them.
  __device__ __forceinline__ void multiply_values() {
    const auto columns = matrices_down<kDim>(shared_.v(), 0, 0);
    multiply_tiles<T, Traits::kTileKeys / 16, false>(
        output_,
        [&](std::uint32_t(&a)[kAtoms][4], int step, int group) {
          constexpr int kPairs = 4 * kAtoms;
          constexpr int kGroups = kDim / 16;
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair)
            if (pair * kGroups / kPairs == group)
              a[pair % kAtoms][pair / kAtoms] = weigh(pair % kAtoms, 4 * step + pair / kAtoms);
        },
        [&](std::uint32_t(&b)[4], int step, int group) {
          load_matrices_transposed(b, columns.at(16 * step, 2 * group));
        });
  }

 private:
  static constexpr int kHeld = Traits::kHoldsQueries ? kDim / 16 : 0;

  __device__ __forceinline__ static int first_row(int atom) {
    return static_cast<int>((thread_index() / 32 * kAtoms + atom) * 16);
  }

  __device__ __forceinline__ static FragmentOwner owner(int atom) {
    const unsigned warp = thread_index() / 32 * kAtoms + atom;
    return {static_cast<int>(warp / 4), static_cast<int>(warp % 4 * 32 + thread_index() % 32)};
  }

  /// Two neighbouring scores become exponentials, summed and packed.
  __device__ __forceinline__ std::uint32_t weigh(int atom, int pair) {
    const int r = pair % 2;
    const float low = exp2_approx(scores_[atom][2 * pair] * params_.exponent_scale - subtracted_[atom][r]);
    const float high = exp2_approx(scores_[atom][2 * pair + 1] * params_.exponent_scale - subtracted_[atom][r]);
    softmax_[atom].row_sum[r] += low + high;
    return pack_pair<T>(low, high);
  }

  Shared& shared_;
  const ForwardParams& params_;
  float output_[kAtoms][kOutputs];
  float scores_[kAtoms][kScores];
  SoftmaxState softmax_[kAtoms];
  float subtracted_[kAtoms][2];  // maxima as exponents
  std::uint32_t held_[Traits::kHoldsQueries ? kHeld : 1][4];
};

__device__ __forceinline__ void build_block_mask(std::uint32_t* words, const ForwardParams& params, int key_block,
                                                 int query_block) {
  const int lane = static_cast<int>(thread_index() % 32);
  const VisibilityArrays& visibility = params.visibility;
  if (visibility.key_intervals != nullptr)
    build_mask_from_intervals(words, load_intervals(visibility.key_intervals, key_block, lane), query_block * kBlock,
                              lane);
  else
    build_mask_from_tracks(words, visibility, key_block, query_block, lane);
}

template <typename T, int kDim>
__global__ void __launch_bounds__(PlainForwardTraits<kDim>::kThreads, PlainForwardTraits<kDim>::kCtas)
    attention_forward_sm80_kernel(const __grid_constant__ ForwardParams params) {
  using Traits = PlainForwardTraits<kDim>;
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<PlainForwardShared<T, kDim>*>(shared_bytes);

  const auto index = static_cast<int>(blockIdx.x);
  const Unit place = unit_at(index, params.num_items, params.num_splits);
  const Item item = params.items[place.item];
  const auto load_keys = [&](T* tile, const StridedRows& tensor, int row) {
    load_rows<Traits::kTileKeys, kDim, Traits::kThreads>(tile, tensor, shared.key_head, row, params.valid_key_rows,
                                                         params.head_dim, params.is_aligned);
    copy_async_commit();
  };

  if (threadIdx.x == 0) {
    shared.query_block = item.block;
    shared.key_head = params.head_map[place.head];
    shared.walk = BlockWalk(item, params.runs, place.split, params.num_splits);
    shared.advance();
  }
  PlainForwardWarp<T, kDim> warp(shared, params);
  warp.begin(unit_output(params, index, place.head, item.block, item.flags));
  load_rows<kBlock, kDim, Traits::kThreads>(shared.q(), params.q, place.head, item.block * kBlock,
                                            params.valid_query_rows, params.head_dim, params.is_aligned);
  copy_async_commit();
  if constexpr (Traits::kHoldsQueries) {
    copy_async_wait<0>();
    __syncthreads();
    warp.hold_queries();
  }
  __syncthreads();
  KeyRun run = shared.next;
  if (threadIdx.x == 0) shared.is_taken = true;
  if (run.kind() != kNoTile) load_keys(shared.k(), params.k, run.row);

  while (run.kind() != kNoTile) {
    copy_async_wait<0>();
    __syncthreads();  // K is here, and nobody reads the last V, mask or run any more
    load_keys(shared.v(), params.v, run.row);
    if (run.row % kBlock == 0) {
      if (run.kind() == kPartialTile && thread_index() < 32)
        build_block_mask(shared.mask, params, run.row / kBlock, shared.query_block);
      if (thread_index() == 0 && shared.is_taken) shared.advance();
    }
    warp.multiply_keys();
    copy_async_wait<0>();
    __syncthreads();  // V, mask and run are here, and nobody reads K any more
    warp.apply_masks(run.kind() == kPartialTile, run.row % kBlock);
    run.row += Traits::kTileKeys;
    if (run.is_over()) {
      run = shared.next;
      if (thread_index() == 0) shared.is_taken = true;
    }
    if (run.kind() != kNoTile) load_keys(shared.k(), params.k, run.row);
    warp.raise();
    warp.multiply_values();
  }
  copy_async_wait<0>();
  // Read again: nothing of the unit stays in registers through the loop.
  const Unit finished = unit_at(index, params.num_items, params.num_splits);
  const Item& finished_item = params.items[finished.item];
  warp.finish(unit_output(params, index, finished.head, finished_item.block, finished_item.flags));
}

template <typename T, int kDim>
void launch_forward_sm80(const ForwardParams& params, cudaStream_t stream) {
  const auto kernel = attention_forward_sm80_kernel<T, kDim>;
  constexpr int kSharedBytes = sizeof(PlainForwardShared<T, kDim>);
  static_assert(kSharedBytes <= 99 * 1024, "compute capability 8.6 has no more");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "reserving shared memory for the plain attention forward kernel");
  const int num_units = params.num_heads * params.num_items * params.num_splits;
  kernel<<<num_units, PlainForwardTraits<kDim>::kThreads, kSharedBytes, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching the plain attention forward kernel");
}

}  // namespace marble::cuda

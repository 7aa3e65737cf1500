// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Forward attention on any GPU from sm_80 on, over a rank plan's items: one CTA a unit, warps of 16-row atoms, mma.sync
// from swizzled shared memory, K and V copied asynchronously one tile ahead. It takes any head dimension up to 256 and
// any alignment, and its fragments, masks, states and arithmetic order are those of the Hopper kernel.

#include "backend/cuda/attention_epilogue.cuh"
#include "backend/cuda/attention_forward.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/online_softmax.cuh"
#include "backend/cuda/tile_mask.cuh"
#include "backend/cuda/tile_walk.cuh"

namespace marble::cuda {

/// `kAligned`: 16-byte copies; otherwise element by element.
template <int kDim, bool kAligned>
struct PlainTraits {
  static constexpr int kTileKeys = kDim > (kAligned ? 128 : 64) ? 32 : 64;  // no spills; fits the 99 KB of sm_86
  static constexpr int kAtoms = kDim > 128 ? 1 : 2;  // of 16 rows a warp: two share each K and V fragment
  static constexpr int kWarps = kBlock / 16 / kAtoms;
  static constexpr int kThreads = kWarps * 32;
};

/// The block after the one in work. One thread walks, in shared memory: the fragments need all registers.
struct NextBlock {
  int block;
  TileKind kind;
};

template <typename T, int kDim, bool kAligned>
struct PlainShared {
  alignas(128) T q[kBlock * kDim];
  alignas(128) T k[PlainTraits<kDim, kAligned>::kTileKeys * kDim];
  alignas(128) T v[PlainTraits<kDim, kAligned>::kTileKeys * kDim];
  alignas(16) std::uint32_t mask[kMaskWords];
  BlockWalk walk;
  NextBlock next;
  int query_block;
  int key_head;

  __device__ __forceinline__ void advance() {
    next.kind = walk.next_kind();
    BlockClass block_class;
    walk.next(next.block, block_class);
  }
};

/// Element offset of a 16-byte chunk: chunks of eight rows that lie in one column fall into different banks.
template <int kDim>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  return row * kDim + (chunk ^ (row % 8)) * 8;
}

/// One lane's view of fragments in a swizzled tile: chunk c of a row that is r modulo 8 lies at c ^ r, so the place of
/// an even chunk more differs in bits that no row sets. One address serves all fragments of a tile.
template <int kDim>
class LaneAddress {
 public:
  __device__ __forceinline__ LaneAddress(const void* tile, int row, int chunk)
      : address_(shared_address(tile) + static_cast<std::uint32_t>(swizzled<kDim>(row, chunk)) * 2) {}

  /// `rows` is a multiple of 8, `chunk` an even number; both known at compile time.
  __device__ __forceinline__ std::uint32_t at(int rows, int chunk) const {
    const auto inside = static_cast<std::uint32_t>(chunk % 8 * 16);
    return (address_ ^ inside) + static_cast<std::uint32_t>(rows * kDim * 2 + chunk / 8 * 128);
  }

 private:
  std::uint32_t address_;
};

/// Copies rows [row, row + kRows) of a head; rows and columns beyond the tensor become zeros.
template <int kRows, int kDim, bool kAligned, typename T>
__device__ __forceinline__ void load_rows(T* tile, const StridedRows& tensor, int head, int row, int valid_rows,
                                          const ForwardParams& params) {
  constexpr int kChunks = kDim / 8;
  const T* source = static_cast<const T*>(tensor.data) + head * tensor.head_stride;
  for (int i = threadIdx.x; i < kRows * kChunks; i += PlainTraits<kDim, kAligned>::kThreads) {
    const int tile_row = i / kChunks;
    const int column = i % kChunks * 8;
    T* target = tile + swizzled<kDim>(tile_row, i % kChunks);
    const bool is_valid = row + tile_row < valid_rows && column < params.head_dim;
    const T* chunk = is_valid ? source + (row + tile_row) * tensor.row_stride + column : source;
    if constexpr (kAligned) {
      copy_async_16(target, chunk, is_valid);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) target[c] = is_valid && column + c < params.head_dim ? chunk[c] : T(0.f);
    }
  }
}

/// The fragments of one warp: kAtoms times the fragments of online_softmax.cuh.
template <typename T, int kDim, bool kAligned>
class PlainWarp {
 public:
  using Traits = PlainTraits<kDim, kAligned>;
  static constexpr int kScores = Traits::kTileKeys / 2;
  static constexpr int kOutputs = kDim / 2;

  __device__ __forceinline__ PlainWarp(PlainShared<T, kDim, kAligned>& shared, const ForwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void begin(const UnitOutput& unit) {
#pragma unroll
    for (int atom = 0; atom < Traits::kAtoms; ++atom) {
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
    for (int atom = 0; atom < Traits::kAtoms; ++atom) {
      if (unit.finishes)
        write_output<T, kDim, kAligned>(params_, unit, owner(atom), output_[atom], softmax_[atom]);
      else
        store_state(unit.state<kDim>(), owner(atom), output_[atom], softmax_[atom]);
    }
  }

  /// S = Q K^T of the tile in shared memory.
  __device__ __forceinline__ void multiply_keys() {
    const int lane = threadIdx.x % 32;
    const LaneAddress<kDim> q(shared_.q, first_row(0) + lane % 16, lane / 16);
    const LaneAddress<kDim> k(shared_.k, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int atom = 0; atom < Traits::kAtoms; ++atom)
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores_[atom][i] = 0.f;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      std::uint32_t queries[Traits::kAtoms][4];
#pragma unroll
      for (int atom = 0; atom < Traits::kAtoms; ++atom) load_matrices(queries[atom], q.at(16 * atom, 2 * step));
#pragma unroll
      for (int group = 0; group < Traits::kTileKeys / 16; ++group) {
        std::uint32_t keys[4];  // keys 0-7: columns 0-7, 8-15; keys 8-15: the same
        load_matrices(keys, k.at(16 * group, 2 * step));
#pragma unroll
        for (int atom = 0; atom < Traits::kAtoms; ++atom) {
          multiply_accumulate<T>(&scores_[atom][8 * group], queries[atom], keys[0], keys[1]);
          multiply_accumulate<T>(&scores_[atom][8 * group + 4], queries[atom], keys[2], keys[3]);
        }
      }
    }
  }

  /// Scores to probabilities; `part` is the tile's place in its block of keys.
  __device__ __forceinline__ void apply_softmax(bool is_partial, int part) {
#pragma unroll
    for (int atom = 0; atom < Traits::kAtoms; ++atom) {
      if (params_.score_map != ScoreMap::none) map_scores(scores_[atom], params_.score_map, params_.score_scale);
      if (is_partial) {
        const int word = owner(atom).row() * 4 + static_cast<int>(threadIdx.x % 4);
        const int shift = part * Traits::kTileKeys / 4;
        const std::uint32_t words[2] = {shared_.mask[word] >> shift, shared_.mask[word + 32] >> shift};
        apply_mask(scores_[atom], words);
      }
      float rescale[2];
      update_softmax<true, skips_still_tiles(kDim)>(softmax_[atom], scores_[atom], rescale, params_.exponent_scale);
      rescale_output<skips_still_tiles(kDim)>(output_[atom], rescale);
      pack_probabilities<T>(probabilities_[atom], scores_[atom]);
    }
  }

  /// O += P V of the tile in shared memory.
  __device__ __forceinline__ void multiply_values() {
    const int lane = threadIdx.x % 32;
    const LaneAddress<kDim> v(shared_.v, lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < Traits::kTileKeys / 16; ++step) {
#pragma unroll
      for (int group = 0; group < kDim / 16; ++group) {
        std::uint32_t values[4];  // columns 0-7: keys 0-7, 8-15; columns 8-15: the same
        load_matrices_transposed(values, v.at(16 * step, 2 * group));
#pragma unroll
        for (int atom = 0; atom < Traits::kAtoms; ++atom) {
          multiply_accumulate<T>(&output_[atom][8 * group], &probabilities_[atom][4 * step], values[0], values[1]);
          multiply_accumulate<T>(&output_[atom][8 * group + 4], &probabilities_[atom][4 * step], values[2], values[3]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static int first_row(int atom) {
    return (static_cast<int>(threadIdx.x) / 32 * Traits::kAtoms + atom) * 16;
  }

  __device__ __forceinline__ static FragmentOwner owner(int atom) {
    const int warp = first_row(atom) / 16;
    return {warp / 4, warp % 4 * 32 + static_cast<int>(threadIdx.x % 32)};
  }

  PlainShared<T, kDim, kAligned>& shared_;
  const ForwardParams& params_;
  float output_[Traits::kAtoms][kOutputs];
  float scores_[Traits::kAtoms][kScores];
  SoftmaxState softmax_[Traits::kAtoms];
  std::uint32_t probabilities_[Traits::kAtoms][kScores / 2];
};

__device__ __forceinline__ void build_block_mask(std::uint32_t* words, const ForwardParams& params, int key_block,
                                                 int query_block) {
  const int lane = threadIdx.x % 32;
  const VisibilityArrays& visibility = params.visibility;
  if (visibility.key_intervals != nullptr)
    build_mask_from_intervals(words, load_intervals(visibility.key_intervals, key_block, lane), query_block * kBlock,
                              lane);
  else
    build_mask_from_tracks(words, visibility, key_block, query_block, lane);
}

template <typename T, int kDim, bool kAligned>
__global__ void __launch_bounds__(PlainTraits<kDim, kAligned>::kThreads)
    attention_forward_sm80_kernel(const __grid_constant__ ForwardParams params) {
  using Traits = PlainTraits<kDim, kAligned>;
  constexpr int kParts = kBlock / Traits::kTileKeys;
  extern __shared__ __align__(128) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<PlainShared<T, kDim, kAligned>*>(shared_bytes);

  const auto index = static_cast<int>(blockIdx.x);
  const Unit place = unit_at(index, params.num_items, params.num_splits);
  const Item item = params.items[place.item];
  const auto load_keys = [&](int row) {
    load_rows<Traits::kTileKeys, kDim, kAligned>(shared.k, params.k, shared.key_head, row, params.valid_key_rows,
                                                 params);
    copy_async_commit();
  };

  if (threadIdx.x == 0) {
    shared.query_block = item.block;
    shared.key_head = params.head_map[place.head];
    shared.walk = BlockWalk(item, params.runs, place.split, params.num_splits);
    shared.advance();
  }
  PlainWarp<T, kDim, kAligned> warp(shared, params);
  warp.begin(unit_output(params, index, item.block, item.flags));
  load_rows<kBlock, kDim, kAligned>(shared.q, params.q, place.head, item.block * kBlock, params.valid_query_rows,
                                    params);
  __syncthreads();
  NextBlock now = shared.next;
  if (now.kind != kNoTile) load_keys(now.block * kBlock);

  while (now.kind != kNoTile) {
    NextBlock next = now;
    for (int part = 0; part < kParts; ++part) {
      const int row = now.block * kBlock + part * Traits::kTileKeys;
      copy_async_wait<0>();
      __syncthreads();  // K is here, and nobody reads the last V, mask or block any more
      load_rows<Traits::kTileKeys, kDim, kAligned>(shared.v, params.v, shared.key_head, row, params.valid_key_rows,
                                                   params);
      copy_async_commit();
      if (part == 0) {
        if (now.kind == kPartialTile && threadIdx.x < 32)
          build_block_mask(shared.mask, params, now.block, shared.query_block);
        if (threadIdx.x == 0) shared.advance();
      }
      warp.multiply_keys();
      copy_async_wait<0>();
      __syncthreads();  // V, mask and block are here, and nobody reads K any more
      if (part + 1 < kParts) {
        load_keys(row + Traits::kTileKeys);
      } else {
        next = shared.next;
        if (next.kind != kNoTile) load_keys(next.block * kBlock);
      }
      warp.apply_softmax(now.kind == kPartialTile, part);
      warp.multiply_values();
    }
    now = next;
  }
  copy_async_wait<0>();
  // Read again: nothing of the unit stays in registers through the loop.
  const Item& finished = params.items[unit_at(index, params.num_items, params.num_splits).item];
  warp.finish(unit_output(params, index, finished.block, finished.flags));
}

template <typename T, int kDim, bool kAligned>
void launch_plain_kernel(const ForwardParams& params, cudaStream_t stream) {
  const auto kernel = attention_forward_sm80_kernel<T, kDim, kAligned>;
  constexpr int kSharedBytes = sizeof(PlainShared<T, kDim, kAligned>);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "reserving shared memory for the plain attention forward kernel");
  const int num_units = params.num_heads * params.num_items * params.num_splits;
  kernel<<<num_units, PlainTraits<kDim, kAligned>::kThreads, kSharedBytes, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching the plain attention forward kernel");
}

template <typename T, int kDim>
void launch_forward_sm80(const ForwardParams& params, cudaStream_t stream) {
  if (params.is_aligned)
    launch_plain_kernel<T, kDim, true>(params, stream);
  else
    launch_plain_kernel<T, kDim, false>(params, stream);
}

}  // namespace marble::cuda

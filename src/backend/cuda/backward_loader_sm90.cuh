// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The feeding side of the Hopper backward kernel: one thread that draws units and drives the copy engine, and warps
// that turn visible ranges into mask bits, one partial block each in turn; and the thread that carries dQ away.

#include "backend/cuda/backward_mask.cuh"
#include "backend/cuda/backward_shared.cuh"
#include "backend/cuda/backward_walk.hpp"
#include "backend/cuda/ptx_bulk.cuh"

namespace marble::cuda {

template <typename T, int kDim>
class BackwardLoader {
 public:
  using Traits = BackwardTraits<kDim>;

  __device__ __forceinline__ BackwardLoader(BackwardShared<T, kDim>& shared, const BackwardParams& params,
                                            const BackwardTensorMaps& maps)
      : shared_(shared), params_(params), maps_(maps) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      const int index = atomicAdd(params_.counter, 1);
      if (index >= params_.num_units) break;
      load_unit(index);
    }
    announce({-1, 0, 0, 0});
    const int adders = num_adders<Traits>(params_);
    for (int i = 0; i < adders; ++i) send_dq({DqMessage::kNone, 0}, i);
    for (int i = adders; i < kFeedingWarps; ++i) request_mask({0, -1});
  }

 private:
  __device__ __forceinline__ void load_unit(int index) {
    state_.unit = backward_unit_at(params_, Traits::kKeyTiles, index);
    forget_registers();
    state_.walk.start(params_, state_.unit);
    if (state_.walk.remaining() == 0 || key_row() >= params_.valid_key_rows) return;
    announce(
        {state_.unit.key_head, key_row(), state_.walk.turn(), key_tile_of(params_, Traits::kKeyTiles, state_.unit)});
    const BackwardMessage& message = shared_.work[state_.units.stage() ^ 1];
    // `announce` counts this unit already: the keys of the one before it must have been read.
    barrier_wait(&shared_.keys_empty, state_.units.count & 1);
    load_key_tile(shared_.k, &maps_.k, &shared_.k_full, message);
    bool needs_values = true;
#pragma unroll 1
    while (state_.walk.remaining() > 0) {
      const GroupWalk::Block& block = state_.block;
      state_.block = state_.walk.next(params_);
      if (block.is_partial && block.is_first_head) request_mask({message.key_row, block.index});
      bool ends_block = false;
#pragma unroll 1
      for (int part = 0; !ends_block; ++part) {
        const int row = block.index * kBlock + part * Traits::kTileQueries;
        ends_block = part == Traits::kQueryTiles - 1 || row + Traits::kTileQueries >= params_.valid_query_rows;
        int flags = block.is_partial ? QueryTile::kPartial : 0;
        if (ends_block && block.is_partial && block.is_last_head) flags |= QueryTile::kReleasesMask;
        if (ends_block && state_.walk.remaining() == 0) flags |= QueryTile::kEndsUnit;
        if (!block.is_partial && (!ends_block || state_.walk.stays_in_run(params_))) flags |= QueryTile::kFullFollows;
        announce_dq(block, part, ends_block);
        load_queries(block, row, flags, part);
        if (needs_values) load_key_tile(shared_.v, &maps_.v, &shared_.v_full, message);
        needs_values = false;
        load_gradients(block.head, row);
        state_.stages.advance();
      }
    }
  }

  __device__ __forceinline__ void announce(const BackwardMessage& message) {
    barrier_wait(&shared_.work_empty[state_.units.stage()], state_.units.parity() ^ 1);
    shared_.work[state_.units.stage()] = message;
    barrier_arrive(&shared_.work_full[state_.units.stage()]);
    state_.units.advance();
  }

  __device__ __forceinline__ void load_key_tile(T* tile, const CUtensorMap* map, std::uint64_t* full,
                                                const BackwardMessage& unit) {
    barrier_arrive_expect(full, Traits::kKeyBytes);
#pragma unroll 1
    for (int column = 0; column < kDim; column += 64)
      tma_load(&tile[column * Traits::kTileKeys], map, full, kEvictFirst, column, unit.key_row, unit.key_head);
  }

  __device__ __forceinline__ void request_mask(const MaskRequest& request) {
    barrier_wait(&shared_.mask_empty[state_.masks.stage()], state_.masks.parity() ^ 1);
    shared_.mask_request[state_.masks.stage()] = request;
    barrier_arrive(&shared_.mask_asked[state_.masks.stage()]);
    state_.masks.advance();
  }

  __device__ __forceinline__ int key_row() const {
    return state_.walk.key_block() * kBlock + state_.unit.key_tile * Traits::kTileKeys;
  }

  /// Tells whoever adds dQ about a tile. `ends_block`: the block's last one.
  __device__ __forceinline__ void announce_dq(const GroupWalk::Block& block, int part, bool ends_block) {
    DqMessage message;
    const int index = block.head * params_.num_blocks + block.index;
    message.tile = index * Traits::kQueryTiles + part;
    message.turn = Traits::kStagesDq ? message.tile : index;
    if (params_.order.query_turns != nullptr) {
      const int key_tile = state_.unit.key_tile;
      const bool is_last = key_tile == Traits::kKeyTiles - 1 || key_row() + Traits::kTileKeys >= params_.valid_key_rows;
      const Turn turn = planned_turn(block.rank, key_tile, Traits::kKeyTiles, is_last);
      if (Traits::kStagesDq || part == 0) message.waits_for = turn.begin;
      if (Traits::kStagesDq || ends_block) message.leaves = turn.end;
    }
    send_dq(message, 0);
  }

  /// Wide tiles' consumers add dQ themselves; unless in turns, nobody reads of it. `ahead`: of the tile at hand.
  __device__ __forceinline__ void send_dq(const DqMessage& message, int ahead) {
    if (!Traits::kStagesDq && params_.order.query_turns == nullptr) return;
    const int slot = static_cast<int>((state_.stages.count + static_cast<std::uint32_t>(ahead)) % kDqMessages);
    shared_.dq_message[slot] = message;
    barrier_arrive(&shared_.dq_asked[slot]);
  }

  __device__ __forceinline__ void load_queries(const GroupWalk::Block& block, int row, int flags, int part) {
    const int stage = state_.stages.stage();
    const int dq_tile = (block.head * params_.num_blocks + block.index) * Traits::kQueryTiles + part;
    barrier_wait(&shared_.q_empty[stage], state_.stages.parity() ^ 1);
    shared_.tile[stage] = {flags, part, dq_tile};
    load_rows(shared_.q[stage], shared_.lse[stage], &maps_.q, params_.lse, &shared_.q_full[stage], block.head, row);
  }

  __device__ __forceinline__ void load_gradients(int head, int row) {
    const int stage = state_.stages.stage();
    barrier_wait(&shared_.dout_empty[stage], state_.stages.parity() ^ 1);
    load_rows(shared_.dout[stage], shared_.minus_delta[stage], &maps_.dout, params_.minus_delta,
              &shared_.dout_full[stage], head, row);
  }

  /// A tile of Q or dO, and the statistics of its rows.
  __device__ __forceinline__ void load_rows(T* tile, float* statistics, const CUtensorMap* map, const float* source,
                                            std::uint64_t* full, int head, int row) {
    constexpr int kStatisticsBytes = Traits::kTileQueries * static_cast<int>(sizeof(float));
    barrier_arrive_expect(full, Traits::kQueryBytes + kStatisticsBytes);
#pragma unroll 1
    for (int column = 0; column < kDim; column += 64)
      tma_load(&tile[column * Traits::kTileQueries], map, full, kEvictLast, column, row, head);
    bulk_load(statistics, source + std::int64_t{head} * params_.num_blocks * kBlock + row, kStatisticsBytes, full);
  }

  BackwardShared<T, kDim>& shared_;
  LoaderState& state_ = shared_.loader;
  const BackwardParams& params_;
  const BackwardTensorMaps& maps_;
};

/// Messages about dQ: every `step`-th tile's, from `first` on.
template <typename T, int kDim>
class DqMessages {
 public:
  __device__ __forceinline__ DqMessages(BackwardShared<T, kDim>& shared, std::uint32_t first, std::uint32_t step)
      : shared_(shared), count_(first - step), step_(step) {}

  /// False after the last tile.
  __device__ __forceinline__ bool next() {
    count_ += step_;
    const int slot = static_cast<int>(count_ % kDqMessages);
    barrier_wait(&shared_.dq_asked[slot], count_ / kDqMessages & 1);
    message_ = shared_.dq_message[slot];
    return message_.tile != DqMessage::kNone;
  }

  __device__ __forceinline__ const DqMessage& message() const { return message_; }
  __device__ __forceinline__ PairRing tile() const { return {count_}; }
  __device__ __forceinline__ bool waits() const { return message_.waits_for != DqMessage::kNone; }
  __device__ __forceinline__ bool leaves() const { return message_.leaves != DqMessage::kNone; }

 private:
  BackwardShared<T, kDim>& shared_;
  DqMessage message_;
  std::uint32_t count_, step_;
};

/// One thread adds the consumers' parts of dQ to the accumulator, both at once: the groups meet in every tile, so
/// neither waits for the other. It asks for a planned turn before the parts are there, and looks at the answer when
/// they are. To pass a turn on takes as long as the tile itself, so in a planned order two threads do this, a stage
/// each.
template <typename T, int kDim>
__device__ __forceinline__ void add_dq_parts(BackwardShared<T, kDim>& shared, const BackwardParams& params,
                                             DqMessages<T, kDim> messages) {
  constexpr int kTile = BackwardTraits<kDim>::kDqMakers * BackwardTraits<kDim>::kDqPart;
  while (messages.next()) {
    const DqMessage& message = messages.message();
    const PairRing tile = messages.tile();
    std::int32_t* const turn = params.order.query_turns + message.turn;
    std::int32_t now = DqMessage::kNone;
    if (messages.waits()) now = read_turn(turn);
    barrier_wait(&shared.dq_full[tile.stage()], tile.parity());
    while (now != message.waits_for) now = read_turn(turn);
    if (messages.waits()) fence_turn_for_copy_engine();
    bulk_reduce_add(params.dq + std::int64_t{message.tile} * kTile, shared.dq[0],
                    kTile * static_cast<int>(sizeof(float)));
    bulk_commit();
    bulk_wait_read();
    barrier_arrive(&shared.dq_empty[0]);
    if (messages.leaves()) {
      bulk_wait();
      pass_turn(turn, message.leaves);
    }
  }
}

/// Wide tiles, whose consumers add dQ themselves: one thread waits for each tile's turn, and passes it on. It alone
/// waits until the sums are in memory: its release covers what reached it through the barrier.
template <typename T, int kDim>
__device__ __forceinline__ void keep_dq_turns(BackwardShared<T, kDim>& shared, const BackwardParams& params) {
  DqMessages messages(shared, 0, 1);
  while (messages.next()) {
    const DqMessage& message = messages.message();
    const PairRing tile = messages.tile();
    std::int32_t* const turn = params.order.query_turns + message.turn;
    if (messages.waits()) wait_turn(turn, message.waits_for);
    barrier_arrive(&shared.dq_full[tile.stage()]);
    barrier_wait(&shared.dq_empty[tile.stage()], tile.parity());
    if (messages.leaves()) pass_turn(turn, message.leaves);
  }
}

/// Each mask warp, from the warpgroup's second on, builds every `num_warps`-th partial block of this CTA.
template <typename T, int kDim>
__device__ __forceinline__ void build_backward_masks(BackwardShared<T, kDim>& shared, const BackwardParams& params,
                                                     int num_warps) {
  using Traits = BackwardTraits<kDim>;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 1;
  for (;;) {
    const PairRing place = shared.mask_place[warp];
    barrier_wait(&shared.mask_asked[place.stage()], place.parity());
    const MaskRequest request = shared.mask_request[place.stage()];
    if (request.query_block < 0) return;
    build_transposed_mask<Traits::kTileKeys>(shared.mask[place.stage()], params.visibility, request.key_row,
                                             request.query_block);
    __syncwarp();
    if (thread_index() % 32 == 0) {
      barrier_arrive(&shared.mask_full[shared.mask_place[warp].stage()]);
      shared.mask_place[warp].count += num_warps;
    }
    __syncwarp();
  }
}

}  // namespace marble::cuda

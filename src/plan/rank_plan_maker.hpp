// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes one rank's executable plan for one layer kind.
//
//   forward    step 0    fetch: Ulysses scatter of q, k, v      work: own keys
//              step s    fetch: slice s of k, v                 work: the fetched keys
//              last      give back: Ulysses gather of out, lse
//   backward   step 0    fetch: scatter of q, k, v, dout, lse, delta    work: own keys, a first part
//              step s    fetch: slice s of k, v                 work: the fetched keys   give back: their dk, dv, added
//                        (what the plan keeps from forward is not exchanged again)
//              after     work: own keys, the part that hides the last give-back (local_split.hpp)
//              after     finish: one cast of dq, dk, dv         give back: Ulysses gather of dq, dk, dv
//              after     finish: one cast of dk, dv, when key heads are replicated and their sums met in fp32
//
// Without Ulysses (degree 1) the attention side is the caller's tensors, and scatter and gather are absent.

#include "plan/fetch_list.hpp"
#include "plan/heads.hpp"
#include "plan/placed_layer.hpp"
#include "plan/rank_plan_parts.hpp"
#include "plan/slices.hpp"

#include <cstdint>
#include <vector>

namespace marble {

class RankPlanMaker {
 public:
  RankPlanMaker(const Plan& plan, const LayerPlan& layer, std::int32_t layer_index, std::int32_t rank, int threads);

  [[nodiscard]] RankPlan make();

 private:
  using Pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;  // (sent buffer, received buffer)

  /// Buffer numbers of the attention side.
  struct Sides {
    std::int32_t q, k, v, out, lse, dout, delta, dq, dk, dv;  // in the caller's dtype (lse and delta fp32)
    std::int32_t dk_sum, dv_sum;                              // fp32, of the attention side
    std::int32_t dk_owner_sum, dv_owner_sum;  // fp32, of this rank's rows, when key heads are replicated
  };
  /// The buffers of a slice's fetched keys and their gradients: two that slices pass through by turns, unless keys are
  /// kept.
  struct Slot {
    std::int32_t k, v, dk, dv;
  };

  void add_header();
  void add_buffers();
  void add_caller_buffers();
  void add_slots();
  std::int32_t add_buffer(const BufferDesc& desc);
  void add_query_segments();

  void add_works();
  void add_work(std::int32_t slice);
  void add_slot_blocks(std::int32_t key_rank, const FetchList& list, Work& work, KeyMajorRuns& runs);
  void add_forward_items();
  void add_own_last_work();
  SectionRange add_items(const std::vector<Item>& items);
  Segment make_segment(const Fragment& fragment, std::int64_t row);
  void append_segment(const Segment& segment, std::int64_t first);

  void add_steps();
  std::int32_t add_fetch(std::int32_t slice);
  std::int32_t add_give_back(std::int32_t slice);
  void add_fetch_side(std::int32_t slice, std::int32_t k, std::int32_t v, bool of_owner, bool add);
  std::int32_t add_scatter(const Pairs& q_like, const Pairs& kv_like);
  std::int32_t add_gather(const Pairs& q_like, const Pairs& kv_like);
  SectionRange add_finishes(const std::vector<Finish>& finishes);

  [[nodiscard]] std::int32_t num_slices() const { return layer_.num_slices; }
  [[nodiscard]] std::int32_t peer(std::int32_t ring_rank) const {
    return ring_rank * plan_.mesh.ulysses + ulysses_rank_;
  }
  [[nodiscard]] std::int64_t slice_rows(std::int32_t ulysses_rank) const;

  const Plan& plan_;
  const LayerPlan& layer_;
  std::int32_t rank_, ring_rank_, ulysses_rank_;
  int threads_;
  HeadShare heads_;
  bool replicates_;
  PlacedLayer placed_;
  StepPeers peers_;
  std::vector<FetchList> fetches_;     // by ring rank: what this rank reads of it
  std::vector<FetchList> deliveries_;  // by ring rank: what it reads of this rank
  std::vector<std::int32_t> local_rule_;
  std::vector<std::vector<Item>> forward_items_;  // by work
  std::vector<Item> own_last_items_;              // of backward, in a work of their own
  Sides sides_{};
  std::vector<Slot> slots_;  // by slice
  RankPlanParts parts_;
};

}  // namespace marble

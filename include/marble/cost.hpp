// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The cost model (paper section 04): how long a planned layer takes and what it holds, from the plan's block pairs,
// slices and mesh and the constants of a Hardware; and the choice of placement, strategies and mesh by it. Integer
// arithmetic: every rank computes the same times and chooses the same.

#include "marble/plan.hpp"
#include "marble/tensor.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace marble {

/// One step. Transfers travel under the work: the next step's fetch and, in backward, the return of the step before.
/// compute_ns, memory_ns and hop_ns are each the largest of any rank. step_ns is how much later the last rank ends this
/// step than the last rank ended the one before: ranks wait for the ranks whose keys or gradients they receive, for no
/// others.
struct StepCost {
  std::int64_t compute_ns = 0;
  std::int64_t memory_ns = 0;  // backward: clearing the gradients of fetched keys, and adding those that return
  std::int64_t hop_ns = 0;
  std::int64_t step_ns = 0;
};

struct PassCost {
  std::int64_t prepare_ns = 0;  // backward: delta, and clearing what gradients are added to
  std::int64_t enter_ns = 0;    // Ulysses scatter, before the first work
  std::vector<StepCost> steps;  // own keys, each slice, and in backward the own keys left for the last return to hide
  std::int64_t return_ns = 0;   // backward: of the last return, what neither work nor the cast of dQ is left to hide
  std::int64_t finish_ns = 0;   // backward: casts of dQ, dK and dV
  std::int64_t leave_ns = 0;    // Ulysses gather, after the last work

  [[nodiscard]] std::int64_t steps_ns() const;
  [[nodiscard]] std::int64_t total_ns() const;
  [[nodiscard]] std::int64_t compute_ns() const;
  /// What memory bandwidth bounds, but for the Ulysses exchanges' packing.
  [[nodiscard]] std::int64_t memory_ns() const;
};

/// One layer, forward and backward.
struct LayerCost {
  PassCost forward;
  PassCost backward;

  [[nodiscard]] std::int64_t total_ns() const { return forward.total_ns() + backward.total_ns(); }
  [[nodiscard]] std::int64_t compute_ns() const { return forward.compute_ns() + backward.compute_ns(); }
  [[nodiscard]] std::int64_t memory_ns() const { return forward.memory_ns() + backward.memory_ns(); }
};

/// With the constants of plan.hardware.
[[nodiscard]] LayerCost estimate(const Plan& plan, std::int32_t layer = 0, DType dtype = DType::bf16);

/// Bytes that the fullest rank holds in one layer's backward: the caller's tensors and gradients, and the workspace
/// that the executor takes for the largest layer kind.
[[nodiscard]] std::int64_t memory_bytes(const Plan& plan, DType dtype = DType::bf16);
/// The same for one layer kind.
[[nodiscard]] std::int64_t memory_bytes(const Plan& plan, std::int32_t layer, DType dtype);

/// The three properties that decide a strategy (paper section 04).
struct MaskProperties {
  double locality = 0.0;       // remote keys that a rank's queries see, of all remote keys; 0 for one ring rank
  double visible_share = 0.0;  // density: visible block pairs, of all
  double full_share = 0.0;     // full block pairs, of the visible ones
  double partial_share = 0.0;
};
[[nodiscard]] MaskProperties mask_properties(const Plan& plan, std::int32_t layer = 0);

/// How far Ulysses can go: to `without_replication` ranks each key head stays on one rank, to `largest` at all. `even`:
/// the degrees at which every rank has as many query heads, and as many key heads, as any other.
struct HeadBudget {
  std::int32_t without_replication = 1;
  std::int32_t largest = 1;
  std::vector<std::int32_t> even;
};
[[nodiscard]] HeadBudget head_budget(const Model& model);

/// The smallest shard, in tokens, whose work on a fetched shard takes as long as fetching the next one, at the share of
/// visible block pairs that the layer has between different ranks; 0 when no ring rank is remote or none is seen.
struct SmallestShard {
  std::int64_t forward_node = 0;  // hops inside a node
  std::int64_t forward_network = 0;
  std::int64_t backward_node = 0;
  std::int64_t backward_network = 0;
};
[[nodiscard]] SmallestShard smallest_shard(const Plan& plan, std::int32_t layer = 0, DType dtype = DType::bf16);

/// One layer kind of a candidate: time of one layer, forward and backward.
struct LayerEstimate {
  Strategy strategy = Strategy::ring;
  std::int64_t forward_ns = 0;
  std::int64_t backward_ns = 0;
  std::int64_t compute_ns = 0;          // of forward_ns + backward_ns: work of each step's slowest rank
  std::int64_t memory_ns = 0;           // clearing, adding and casting
  std::int64_t ulysses_ns = 0;          // scatter and gather
  double step_busiest_over_mean = 1.0;  // in tile cost
  std::int64_t kv_tokens = 0;           // received, as exchange_tokens()
  std::string why;                      // against the best other strategy of the placement; of a choice's first alone

  [[nodiscard]] std::int64_t total_ns() const { return forward_ns + backward_ns; }
};

/// One placement for the model and a strategy for each layer kind.
struct Candidate {
  Mesh mesh;
  Canonical canonical = Canonical::stack;
  Placement placement = Placement::contiguous;
  std::vector<LayerEstimate> layers;  // by layer kind
  std::int64_t model_ns = 0;          // the model's attention: count x time, summed over layer kinds
  std::int64_t memory_bytes = 0;
  bool fits = false;
};

/// Candidates that fit come first, by rising time, but for the first of all: of those within a hundredth of the fastest
/// over its mesh it is the one that receives fewest keys. Each placement is there with its fastest strategies, and with
/// each other strategy of each layer kind in turn. `left_out` says what was not tried, and why.
struct Choice {
  std::vector<Candidate> candidates;
  std::string why;  // the first won, in words
  std::vector<std::string> left_out;

  [[nodiscard]] const Candidate& best() const { return candidates.front(); }
};

/// What make_plan follows when options leave placement or strategy open; given ones restrict the candidates.
[[nodiscard]] Choice choose(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options = {},
                            DType dtype = DType::bf16);

/// Over every split of `num_ranks` into ring x Ulysses with Ulysses inside a node.
[[nodiscard]] Choice choose_mesh(const Layout& layout, const Model& model, std::int32_t num_ranks,
                                 std::int32_t ranks_per_node, const PlanOptions& options = {},
                                 DType dtype = DType::bf16);

/// The paper's strategy table and its 512-token rule, for comparison with the cost model.
struct PaperChoice {
  Strategy strategy = Strategy::alltoall;
  Placement placement = Placement::contiguous;
  std::string why;
};
[[nodiscard]] PaperChoice paper_choice(const Layout& layout, const MaskRule& rule);

}  // namespace marble

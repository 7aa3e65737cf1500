// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The planner: a pure, local, deterministic function from a layout, a model and a mesh to a plan, the same on every
// rank. No collective, no device, no global state, integer arithmetic. A Plan is global and small (O(spans + pieces));
// one rank's executable work and transfer lists are a RankPlan (rank_plan.hpp), made from it.

#include "marble/generators.hpp"
#include "marble/hardware.hpp"
#include "marble/layout.hpp"
#include "marble/mask.hpp"
#include "marble/rank_plan.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace marble {

/// `count` attention layers of one mask rule.
struct LayerKind {
  MaskRule rule;
  std::int32_t count = 1;

  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

struct Model {
  std::int32_t heads = 1;
  std::int32_t kv_heads = 1;
  std::int32_t head_dim = 64;
  std::vector<LayerKind> layers = {LayerKind{}};
  bool order_dependent = false;  // other layers need the given token order: forces sequence order, contiguous placement

  friend bool operator==(const Model&, const Model&) = default;
};

/// The model whose packs a generator makes.
[[nodiscard]] Model model_of(const GeneratorInfo& generator);

/// ring x ulysses ranks; rank = ring_rank * ulysses + ulysses_rank, so a Ulysses group is consecutive ranks.
struct Mesh {
  std::int32_t ring = 1;
  std::int32_t ulysses = 1;
  std::int32_t ranks_per_node = 8;

  [[nodiscard]] std::int32_t num_ranks() const { return ring * ulysses; }
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// Which ring rank and row stores each canonical piece (paper sections 03 and 04).
///   contiguous  equal runs of the canonical order
///   zigzag      2 R equal runs, rank r holds runs r and 2 R - 1 - r
///   striped     stripes of `stripe` tokens dealt round-robin
///   ptrr        blocks sorted by work, dealt in rounds of R so that queries' and keys' work are level
///   chunks      1, 2, 4 … 64 contiguous chunks a rank, that minimise the sum of each ring step's slowest rank
///   dealt       whole samples, so that tokens and work are equal; only samples too heavy for a fair share are split
enum class Placement : std::uint8_t { contiguous, zigzag, striped, ptrr, chunks, dealt };

/// How keys reach queries. All are rounds of fetches from the ranks at ring distance 1, 2, … R - 1:
///   ring       every shard whole, one distance a step
///   alltoall   only the key blocks that hold a legal pair, as many in a step as the cap on what a rank fetches allows
///   allgather  every shard whole, as many in a step as that cap allows
enum class Strategy : std::uint8_t { ring, alltoall, allgather };

/// What backward finds kept from forward; the rest it exchanges again. More memory, fewer bytes.
///   nothing    only the caller's own tensors
///   scattered  the attention side of Ulysses: q, k, v and lse of this rank's heads
///   fetched    that, and every fetched key
enum class Keep : std::uint8_t { nothing, scattered, fetched };

[[nodiscard]] std::string_view to_string(Placement placement);
[[nodiscard]] std::string_view to_string(Strategy strategy);
[[nodiscard]] std::string_view to_string(Keep keep);
/// Throw InvalidArgument naming the value and the accepted names.
[[nodiscard]] Placement parse_placement(std::string_view name);
[[nodiscard]] Strategy parse_strategy(std::string_view name);
[[nodiscard]] Canonical parse_canonical(std::string_view name);
[[nodiscard]] Keep parse_keep(std::string_view name);

/// Absent choices are the planner's: placement and strategies by the cost model (cost.hpp).
struct PlanOptions {
  std::optional<Canonical> canonical;
  std::optional<Placement> placement;
  std::optional<Strategy> strategy;        // of every layer kind
  std::vector<Strategy> layer_strategies;  // one for each layer kind, in place of `strategy`
  Hardware hardware;
  std::int32_t block = 128;   // rows of a block, forward and backward alike
  std::int64_t stripe = 128;  // tokens of a stripe (striped)
  Keep keep = Keep::nothing;
  std::int64_t fetch_tokens = 0;  // cap on the rows that a rank fetches in a step (alltoall, allgather); 0: one shard
  int threads = 2;
};

/// Canonical indices [canonical, canonical + length) live on ring rank `ring_rank`, rows [row, row + length).
struct Piece {
  std::int64_t canonical = 0;
  std::int64_t length = 0;
  std::int64_t row = 0;
  std::int32_t ring_rank = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// What ring rank `query_rank` computes with, and fetches from, ring rank `key_rank`, for one head.
struct PairDemand {
  std::int64_t full_tiles = 0;  // block pairs
  std::int64_t partial_tiles = 0;
  std::int64_t needed_rows = 0;  // rows of the key blocks that hold a legal pair, pads excluded
  std::int64_t needed_blocks = 0;
  std::int32_t slice = 0;  // the step whose fetch brings them; 0: nothing travels
};

/// One layer kind's plan. A step attends keys that arrived; step 0 is the rank's own keys.
struct LayerPlan {
  LayerKind kind;
  Strategy strategy = Strategy::ring;
  bool uses_tracks = false;        // partial blocks need the four-track test
  std::vector<PairDemand> demand;  // [ring query rank][ring key rank]
  std::int32_t num_slices = 0;     // steps that fetch, 1 to num_slices
  std::int64_t slot_rows = 0;      // rows of the largest fetch of any rank and step, in whole blocks
};

struct Plan {
  Layout layout;
  Model model;
  Mesh mesh;
  Hardware hardware;
  std::int32_t block = 128;
  Canonical canonical = Canonical::stack;
  Placement placement = Placement::ptrr;
  Keep keep = Keep::nothing;
  std::vector<Piece> pieces;              // ascending canonical index, covering [0, tokens)
  std::int64_t rows = 0;                  // of every rank's tensors; depends only on tokens, mesh and block
  std::vector<std::int64_t> ring_tokens;  // tokens of each ring rank
  std::vector<LayerPlan> layers;
  std::uint64_t digest = 0;  // of everything above
};

/// Throws InvalidArgument on an impossible model, mesh or option.
[[nodiscard]] Plan make_plan(const Layout& layout, const Model& model, const Mesh& mesh,
                             const PlanOptions& options = {});

/// One rank's executable plan for layer kind `layer`. Equal plans give equal bytes.
[[nodiscard]] RankPlan make_rank_plan(const Plan& plan, std::int32_t rank, std::int32_t layer = 0, int threads = 2);

/// Tokens of `rank`: row i of its tensors holds pack position result[i]; shorter than plan.rows by the pads.
[[nodiscard]] std::vector<std::int64_t> rank_positions(const Plan& plan, std::int32_t rank);

/// The two balances of a layer (system design, section 4.9): total of the busiest rank over the mean, and the sum over
/// steps of each step's busiest rank over the sum of step means; in tile cost and in legal pairs. 1 for no work.
struct Balance {
  double busiest_over_mean = 1.0;
  double step_busiest_over_mean = 1.0;
  double busiest_over_mean_pairs = 1.0;
  double step_busiest_over_mean_pairs = 1.0;
};
[[nodiscard]] Balance balance(const Plan& plan, std::int32_t layer = 0);

/// Per step and ring rank, legal pairs of one head: result[step][ring rank].
[[nodiscard]] std::vector<std::vector<std::int64_t>> step_pairs(const Plan& plan, std::int32_t layer = 0);

/// Key tokens received in forward, summed over all ranks; a token whose head share is 1/U counts 1/U (all Ulysses ranks
/// of a ring rank together count it once).
struct ExchangeTokens {
  std::int64_t kv = 0;       // by the layer's strategy
  std::int64_t ring_kv = 0;  // by a ring
  std::int64_t allgather_kv = 0;
};
[[nodiscard]] ExchangeTokens exchange_tokens(const Plan& plan, std::int32_t layer = 0);

/// A versioned byte form; reading validates and throws InvalidArgument on a truncated or altered plan.
[[nodiscard]] std::vector<std::byte> to_bytes(const Plan& plan);
[[nodiscard]] Plan plan_from_bytes(std::span<const std::byte> bytes);

/// Throws InvalidArgument unless `plan` was made for `layout`.
void check_plan_for(const Plan& plan, const Layout& layout);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Predicted time of a layer, as the run of its events. Invariants of the model:
//   1. Ranks meet at exchanges only: a rank's fetch begins once it and the ranks that provide its rows have begun the
//      step before, and its next step once that fetch is there. Ranks that move nothing to each other never wait for
//      each other.
//   2. As the executor does, a step's work hides the next step's fetch and the return of the step before, and the last
//      part of a rank's own keys the last return.
//   3. Links inside and across nodes work side by side, each way at full rate: a rank's transfers take as long as the
//      slower of the two, and the longer of what it sends and receives.
//   4. All Ulysses ranks of a ring rank count as the one with the most heads.
//   5. What only moves bytes takes its bytes, read and written, over the memory's bandwidth. The callers' tensors are
//      taken to be dense; nobody knows their strides here.

#include "plan/cost.hpp"

#include "plan/balance.hpp"
#include "plan/local_split.hpp"
#include "plan/slices.hpp"
#include "plan/tile_cost.hpp"
#include "plan/ulysses_cost.hpp"

#include <algorithm>
#include <numeric>

namespace marble {
namespace {

constexpr std::int64_t kFp32 = 4;

class LayerEstimator {
 public:
  LayerEstimator(const Plan& plan, const LayerPlan& layer, DType dtype)
      : plan_(plan),
        layer_(layer),
        hardware_(plan.hardware),
        ring_(plan.mesh.ring),
        heads_(busiest_heads(plan.model, plan.mesh.ulysses)),
        io_row_(2 * heads_.kv * plan.model.head_dim * size_of(dtype)),
        fp32_row_(2 * heads_.kv * plan.model.head_dim * size_of(DType::fp32)),
        element_(size_of(dtype)),
        replicates_(replicates_key_heads(plan.model, plan.mesh.ulysses)),
        peers_(plan, layer),
        splits_(splits_own_keys(plan, layer)) {
    for (std::size_t s = 0; s < num_steps(); ++s) hops_.push_back(measure_hops(s));
  }

  [[nodiscard]] PassCost forward() const {
    const TileTime tile = forward_tile(hardware_, plan_.block, plan_.model.head_dim);
    PassCost pass{.enter_ns = scatter_ns(), .leave_ns = gather_ns()};
    Moments starts(ring(), 0);
    for (std::size_t s = 0; s < num_steps(); ++s) {
      const Moments fetched = arrivals(s + 1, Way::fetch, starts, starts, io_row_);
      StepCost& cost = pass.steps.emplace_back();
      for (std::size_t r = 0; r < ring(); ++r) {
        const std::int64_t compute = compute_ns(s, r, tile);
        cost.compute_ns = std::max(cost.compute_ns, compute);
        cost.hop_ns = std::max(cost.hop_ns, hop_ns(s + 1, r, io_row_));
        starts[r] = std::max(starts[r] + compute, fetched[r]) + hardware_.step_ns;
      }
      cost.step_ns = front(starts) - pass.steps_ns();
    }
    return pass;
  }

  [[nodiscard]] PassCost backward() const {
    PassCost pass{.prepare_ns = prepare_ns(),
                  .enter_ns = scatter_back_ns(),
                  .finish_ns = finish_dq_ns() + finish_keys_ns(),
                  .leave_ns = gather_back_ns()};
    const bool fetches_again = plan_.keep != Keep::fetched;
    Moments starts(ring(), 0);
    for (std::size_t s = 0; s < num_steps() + (splits_ ? 1 : 0); ++s) {
      // A step begins where the work before it ended, so the return of that work was handed over then, too.
      const std::size_t last = s > 0 ? s - 1 : 0;
      const Moments returned = arrivals(last, Way::give_back, starts, starts, fp32_row_);
      const std::size_t next = fetches_again ? s + 1 : num_steps();
      const Moments fetched = arrivals(next, Way::fetch, starts, returned, io_row_);
      StepCost& cost = pass.steps.emplace_back();
      for (std::size_t r = 0; r < ring(); ++r) {
        const std::int64_t compute = backward_compute_ns(s, r), clear = clear_ns(s, r), add = add_ns(last, r);
        cost.compute_ns = std::max(cost.compute_ns, compute);
        cost.memory_ns = std::max(cost.memory_ns, clear + add);
        cost.hop_ns = std::max(cost.hop_ns, hop_ns(next, r, io_row_) + (s > 1 ? hop_ns(s - 1, r, fp32_row_) : 0));
        starts[r] = std::max({starts[r] + clear + compute, returned[r], fetched[r]}) + add + hardware_.step_ns;
      }
      cost.step_ns = front(starts) - pass.steps_ns();
    }
    if (!splits_ && num_steps() > 1) pass.return_ns = last_return_ns(starts);
    return pass;
  }

  /// One step of the mean rank, and the Ulysses exchanges, each way.
  [[nodiscard]] std::int64_t ideal_ns() const {
    PairDemand sum;
    for (const PairDemand& demand : layer_.demand) {
      sum.full_tiles += demand.full_tiles;
      sum.partial_tiles += demand.partial_tiles;
    }
    const std::int64_t head_dim = plan_.model.head_dim;
    const std::int64_t work = tiles_ns(sum, forward_tile(hardware_, plan_.block, head_dim)) +
                              tiles_ns(sum, backward_tile(hardware_, plan_.block, head_dim));
    return work / ring_ + 2 * hardware_.step_ns + prepare_ns() + finish_dq_ns() + finish_keys_ns() + scatter_ns() +
           gather_ns() + scatter_back_ns() + gather_back_ns();
  }

 private:
  [[nodiscard]] std::size_t num_steps() const { return static_cast<std::size_t>(layer_.num_slices) + 1; }
  [[nodiscard]] std::size_t ring() const { return static_cast<std::size_t>(ring_); }

  /// Rows that a ring rank moves for one step.
  struct Hop {
    Moved longest;  // of both ways, on the Ulysses rank with the longest way
    std::int64_t fetched = 0, given = 0;
  };

  [[nodiscard]] std::vector<Hop> measure_hops(std::size_t s) const {
    std::vector<Hop> hops(ring());
    if (s == 0) return hops;
    const auto step = static_cast<std::int64_t>(s);
    // Ulysses groups that fill nodes evenly cross them alike.
    const std::int64_t ways = plan_.mesh.ranks_per_node % plan_.mesh.ulysses == 0 ? 1 : plan_.mesh.ulysses;
    for (std::int64_t r = 0; r < ring_; ++r)
      for (std::int64_t u = 0; u < ways; ++u) {
        Moved in, out;
        const std::int64_t node = node_of(plan_.mesh, r, u);
        for (const std::int64_t source : peers_.sources(r, step))
          in.add(fetched_rows(plan_, layer_, r, source), node_of(plan_.mesh, source, u) == node);
        for (const std::int64_t target : peers_.targets(r, step))
          out.add(fetched_rows(plan_, layer_, target, r), node_of(plan_.mesh, target, u) == node);
        Hop& hop = hops[static_cast<std::size_t>(r)];
        hop = {longer(hop.longest, longer(in, out)), in.node + in.network, out.node + out.network};
      }
    return hops;
  }

  /// Transfers of step s at ring rank r, or none beyond the last step. A ring's hop has its latency in step_ns.
  [[nodiscard]] std::int64_t hop_ns(std::size_t s, std::size_t r, std::int64_t row_bytes) const {
    if (s >= num_steps()) return 0;
    const Moved& rows = hops_[s][r].longest;
    const std::int64_t ns = travel_ns(hardware_, {rows.node * row_bytes, rows.network * row_bytes});
    return ns > 0 && layer_.strategy != Strategy::ring ? ns + hardware_.exchange_ns : ns;
  }

  /// One moment for each ring rank, from the pass's first work on.
  using Moments = std::vector<std::int64_t>;

  [[nodiscard]] static std::int64_t front(const Moments& moments) { return *std::ranges::max_element(moments); }

  enum class Way { fetch, give_back };

  /// When slice s has come to each rank: its rows from the ranks behind that own them, or their gradients from the
  /// ranks ahead that attended them. `begun`: when ranks hand over what they send; `free`: when a rank's links are.
  [[nodiscard]] Moments arrivals(std::size_t s, Way way, const Moments& begun, const Moments& free,
                                 std::int64_t row_bytes) const {
    Moments done = free;
    if (s == 0 || s >= num_steps()) return done;
    for (std::int64_t r = 0; r < ring_; ++r) {
      std::int64_t& moment = done[static_cast<std::size_t>(r)];
      moment = std::max(moment, begun[static_cast<std::size_t>(r)]);
      const auto step = static_cast<std::int64_t>(s);
      for (const std::int64_t peer : way == Way::fetch ? peers_.sources(r, step) : peers_.targets(r, step))
        moment = std::max(moment, begun[static_cast<std::size_t>(peer)]);
      moment += hop_ns(s, static_cast<std::size_t>(r), row_bytes);
    }
    return done;
  }

  /// Step s of backward; the step after the last slice is the last part of the own keys.
  [[nodiscard]] std::int64_t backward_compute_ns(std::size_t s, std::size_t r) const {
    const TileTime tile = backward_tile(hardware_, plan_.block, plan_.model.head_dim);
    if (s > 0 && s < num_steps()) return compute_ns(s, r, tile);
    const std::int64_t own = compute_ns(0, r, tile);
    if (!splits_) return own;
    const LocalSplit split = local_split(plan_, layer_, static_cast<std::int64_t>(r));
    const auto last = static_cast<std::int64_t>(static_cast<__int128>(own) * split.last / split.whole);
    return s == 0 ? own - last : last;
  }

  [[nodiscard]] std::int64_t compute_ns(std::size_t s, std::size_t r, const TileTime& tile) const {
    PairDemand sum;
    for (const std::int64_t key : peers_.sources(static_cast<std::int64_t>(r), static_cast<std::int64_t>(s))) {
      const PairDemand& demand = demand_of(plan_, layer_, static_cast<std::int64_t>(r), key);
      sum.full_tiles += demand.full_tiles;
      sum.partial_tiles += demand.partial_tiles;
    }
    return tiles_ns(sum, tile);
  }

  [[nodiscard]] std::int64_t tiles_ns(const PairDemand& demand, const TileTime& tile) const {
    const __int128 femtoseconds = static_cast<__int128>(demand.full_tiles) * tile.full_fs +
                                  static_cast<__int128>(demand.partial_tiles) * tile.partial_fs;
    return static_cast<std::int64_t>(femtoseconds * heads_.q / 1'000'000);
  }

  [[nodiscard]] std::int64_t memory_ns(std::int64_t bytes) const {
    return travel_ns(bytes, hardware_.memory_mbytes_per_s);
  }

  /// Elements of q, or of k, on the attention side of a rank.
  [[nodiscard]] std::int64_t q_elements() const {
    return plan_.rows * plan_.mesh.ulysses * heads_.q * plan_.model.head_dim;
  }
  [[nodiscard]] std::int64_t k_elements() const {
    return plan_.rows * plan_.mesh.ulysses * heads_.kv * plan_.model.head_dim;
  }
  /// Elements of k of this rank's own rows and all heads: where replicated key heads are summed.
  [[nodiscard]] std::int64_t owner_elements() const { return plan_.rows * plan_.model.kv_heads * plan_.model.head_dim; }

  /// Before backward: out and dout are read, dQ and the sums of dK and dV cleared.
  [[nodiscard]] std::int64_t prepare_ns() const {
    const std::int64_t read = 2 * plan_.rows * plan_.model.heads * plan_.model.head_dim * element_;
    const std::int64_t sums = 2 * (k_elements() + (replicates_ ? owner_elements() : 0));
    return memory_ns(read + (q_elements() + sums) * kFp32);
  }

  /// After the last work: gradients are read in fp32 and written in the tensors' dtype.
  [[nodiscard]] std::int64_t finish_dq_ns() const { return memory_ns(q_elements() * (kFp32 + element_)); }
  [[nodiscard]] std::int64_t finish_keys_ns() const {
    return memory_ns(2 * (replicates_ ? owner_elements() : k_elements()) * (kFp32 + element_));
  }

  /// Gradients of the keys that rank r fetched for step s start as zeros.
  [[nodiscard]] std::int64_t clear_ns(std::size_t s, std::size_t r) const {
    return s < num_steps() ? memory_ns(hops_[s][r].fetched * fp32_row_) : 0;
  }
  /// Those that come back of its own keys of slice s: read, and added to sums that are read and written.
  [[nodiscard]] std::int64_t add_ns(std::size_t s, std::size_t r) const {
    return memory_ns(3 * hops_[s][r].given * fp32_row_);
  }

  /// How much longer the last return keeps a rank than the cast of dQ beside it; `ends`: of the ranks' last works.
  [[nodiscard]] std::int64_t last_return_ns(const Moments& ends) const {
    const std::size_t last = num_steps() - 1;
    const Moments returned = arrivals(last, Way::give_back, ends, ends, fp32_row_);
    std::int64_t done = 0;
    for (std::size_t r = 0; r < ring(); ++r)
      done = std::max(done, std::max(returned[r], ends[r] + finish_dq_ns()) + add_ns(last, r));
    return done - front(ends) - finish_dq_ns();
  }

  [[nodiscard]] std::int64_t ulysses_ns(const UlyssesRow& row) const {
    return marble::ulysses_ns(plan_, row, element_);
  }
  /// q, k and v; and back out and lse.
  [[nodiscard]] std::int64_t scatter_ns() const { return ulysses_ns({.q_tensors = 1, .kv_tensors = 2}); }
  [[nodiscard]] std::int64_t gather_ns() const { return ulysses_ns({.q_tensors = 1, .scalars = 1}); }
  /// dout and delta; and q, k, v and lse unless they were kept. Back dq, dk and dv.
  [[nodiscard]] std::int64_t scatter_back_ns() const {
    if (plan_.keep != Keep::nothing) return ulysses_ns({.q_tensors = 1, .scalars = 1});
    return ulysses_ns({.q_tensors = 2, .kv_tensors = 2, .scalars = 2});
  }
  [[nodiscard]] std::int64_t gather_back_ns() const {
    return ulysses_ns({.q_tensors = 1, .kv_tensors = 2, .sums_keys = replicates_});
  }

  const Plan& plan_;
  const LayerPlan& layer_;
  const Hardware& hardware_;
  std::int64_t ring_;
  BusiestHeads heads_;
  std::int64_t io_row_, fp32_row_;  // bytes of one key row, k and v, of a rank's heads
  std::int64_t element_;
  bool replicates_;
  StepPeers peers_;
  bool splits_;
  std::vector<std::vector<Hop>> hops_;  // by step and ring rank
};

}  // namespace

std::int64_t PassCost::steps_ns() const {
  return std::accumulate(steps.begin(), steps.end(), std::int64_t{0},
                         [](std::int64_t sum, const StepCost& step) { return sum + step.step_ns; });
}

std::int64_t PassCost::total_ns() const {
  return prepare_ns + enter_ns + steps_ns() + return_ns + finish_ns + leave_ns;
}

std::int64_t PassCost::memory_ns() const {
  return std::accumulate(steps.begin(), steps.end(), prepare_ns + finish_ns,
                         [](std::int64_t sum, const StepCost& step) { return sum + step.memory_ns; });
}

std::int64_t PassCost::compute_ns() const {
  return std::accumulate(steps.begin(), steps.end(), std::int64_t{0},
                         [](std::int64_t sum, const StepCost& step) { return sum + step.compute_ns; });
}

BusiestHeads busiest_heads(const Model& model, std::int32_t ulysses) {
  BusiestHeads busiest;
  for (std::int32_t u = 0; u < ulysses; ++u) {
    const HeadShare share = head_share(model, ulysses, u);
    busiest.q = std::max<std::int64_t>(busiest.q, share.q.count);
    busiest.kv = std::max<std::int64_t>(busiest.kv, share.kv.count);
  }
  return busiest;
}

LayerCost estimate_layer(const Plan& plan, const LayerPlan& layer, DType dtype) {
  const LayerEstimator estimator(plan, layer, dtype);
  return {estimator.forward(), estimator.backward()};
}

std::int64_t ideal_ns(const Plan& plan, const LayerPlan& layer, DType dtype) {
  return LayerEstimator(plan, layer, dtype).ideal_ns();
}

LayerCost estimate(const Plan& plan, std::int32_t layer, DType dtype) {
  return estimate_layer(plan, layer_of(plan, layer), dtype);
}

}  // namespace marble

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

#include "plan/cost.hpp"

#include "plan/balance.hpp"
#include "plan/local_split.hpp"
#include "plan/slices.hpp"
#include "plan/tile_cost.hpp"

#include <algorithm>
#include <numeric>

namespace marble {
namespace {

/// Rows or bytes that one rank moves, by link.
struct Moved {
  std::int64_t node = 0;
  std::int64_t network = 0;

  void add(std::int64_t amount, bool same_node) { (same_node ? node : network) += amount; }
};

Moved longer(const Moved& a, const Moved& b) {
  return {std::max(a.node, b.node), std::max(a.network, b.network)};
}

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
        peers_(plan, layer),
        splits_(splits_own_keys(plan, layer)) {
    for (std::size_t s = 0; s < num_steps(); ++s) hops_.push_back(measure_hops(s));
  }

  [[nodiscard]] PassCost forward() const {
    const TileTime tile = forward_tile(hardware_, plan_.block, plan_.model.head_dim);
    PassCost pass{.enter_ns = scatter_ns(1, 0, 2), .leave_ns = gather_ns(1, 0, element_, 1)};
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
    PassCost pass{.enter_ns = scatter_back_ns(), .leave_ns = gather_ns(1, 2, dkv_element(), 0)};
    const bool fetches_again = plan_.keep != Keep::fetched;
    Moments starts(ring(), 0);
    for (std::size_t s = 0; s < num_steps() + (splits_ ? 1 : 0); ++s) {
      // A step begins where the work before it ended, so the return of that work was handed over then, too.
      const Moments returned = arrivals(s > 0 ? s - 1 : 0, Way::give_back, starts, starts, fp32_row_);
      const std::size_t next = fetches_again ? s + 1 : num_steps();
      const Moments fetched = arrivals(next, Way::fetch, starts, returned, io_row_);
      StepCost& cost = pass.steps.emplace_back();
      for (std::size_t r = 0; r < ring(); ++r) {
        const std::int64_t compute = backward_compute_ns(s, r);
        cost.compute_ns = std::max(cost.compute_ns, compute);
        cost.hop_ns = std::max(cost.hop_ns, hop_ns(next, r, io_row_) + (s > 1 ? hop_ns(s - 1, r, fp32_row_) : 0));
        starts[r] = std::max({starts[r] + compute, returned[r], fetched[r]}) + hardware_.step_ns;
      }
      cost.step_ns = front(starts) - pass.steps_ns();
    }
    if (!splits_ && num_steps() > 1)
      pass.return_ns = front(arrivals(num_steps() - 1, Way::give_back, starts, starts, fp32_row_)) - front(starts);
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
    return work / ring_ + 2 * hardware_.step_ns + scatter_ns(1, 0, 2) + gather_ns(1, 0, element_, 1) +
           scatter_back_ns() + gather_ns(1, 2, dkv_element(), 0);
  }

 private:
  [[nodiscard]] std::size_t num_steps() const { return static_cast<std::size_t>(layer_.num_slices) + 1; }
  [[nodiscard]] std::size_t ring() const { return static_cast<std::size_t>(ring_); }

  [[nodiscard]] std::int64_t node_of(std::int64_t ring_rank, std::int64_t u) const {
    return (ring_rank * plan_.mesh.ulysses + u) / plan_.mesh.ranks_per_node;
  }

  /// Rows that every ring rank moves for step s: the longer of both ways, on the Ulysses rank with the longest way.
  [[nodiscard]] std::vector<Moved> measure_hops(std::size_t s) const {
    std::vector<Moved> hops(ring());
    if (s == 0) return hops;
    const auto step = static_cast<std::int64_t>(s);
    // Ulysses groups that fill nodes evenly cross them alike.
    const std::int64_t ways = plan_.mesh.ranks_per_node % plan_.mesh.ulysses == 0 ? 1 : plan_.mesh.ulysses;
    for (std::int64_t r = 0; r < ring_; ++r)
      for (std::int64_t u = 0; u < ways; ++u) {
        Moved in, out;
        const std::int64_t node = node_of(r, u);
        for (const std::int64_t source : peers_.sources(r, step))
          in.add(fetched_rows(plan_, layer_, r, source), node_of(source, u) == node);
        for (const std::int64_t target : peers_.targets(r, step))
          out.add(fetched_rows(plan_, layer_, target, r), node_of(target, u) == node);
        Moved& hop = hops[static_cast<std::size_t>(r)];
        hop = longer(hop, longer(in, out));
      }
    return hops;
  }

  [[nodiscard]] std::int64_t travel(const Moved& rows, std::int64_t row_bytes) const {
    return std::max(travel_ns(rows.node * row_bytes, hardware_.node_mbytes_per_s),
                    travel_ns(rows.network * row_bytes, hardware_.network_mbytes_per_s));
  }

  /// Transfers of step s at ring rank r, or none beyond the last step. A ring's hop has its latency in step_ns.
  [[nodiscard]] std::int64_t hop_ns(std::size_t s, std::size_t r, std::int64_t row_bytes) const {
    if (s >= num_steps()) return 0;
    const std::int64_t ns = travel(hops_[s][r], row_bytes);
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

  /// Gradients of replicated key heads travel in fp32, to be summed by their owner.
  [[nodiscard]] std::int64_t dkv_element() const {
    return replicates_key_heads(plan_.model, plan_.mesh.ulysses) ? size_of(DType::fp32) : element_;
  }

  /// An all-to-all of a Ulysses group in which a rank's row of `q` query heads, `kv` key heads takes row_bytes(q, kv).
  template <typename RowBytes>
  [[nodiscard]] std::int64_t ulysses_ns(RowBytes&& row_bytes) const {
    const std::int32_t ulysses = plan_.mesh.ulysses;
    if (ulysses == 1) return 0;
    std::int64_t slowest = 0;
    for (std::int64_t r = 0; r < ring_; ++r)
      for (std::int32_t u = 0; u < ulysses; ++u) {
        const HeadShare own = head_share(plan_.model, ulysses, u);
        Moved in, out;
        for (std::int32_t peer = 0; peer < ulysses; ++peer) {
          if (peer == u) continue;
          const HeadShare share = head_share(plan_.model, ulysses, peer);
          const bool same_node = node_of(r, peer) == node_of(r, u);
          out.add(plan_.rows * row_bytes(share.q.count, share.kv.count), same_node);
          in.add(plan_.rows * row_bytes(own.q.count, own.kv.count), same_node);
        }
        slowest = std::max(slowest, travel(longer(in, out), 1));
      }
    return slowest + hardware_.exchange_ns;
  }

  /// `q_tensors` like q, `kv_tensors` like k, and `scalars` of one fp32 a query head.
  [[nodiscard]] std::int64_t scatter_ns(std::int64_t q_tensors, std::int64_t scalars, std::int64_t kv_tensors) const {
    return gather_ns(q_tensors, kv_tensors, element_, scalars);
  }
  /// dout and delta; and q, k, v and lse unless they were kept.
  [[nodiscard]] std::int64_t scatter_back_ns() const {
    return plan_.keep == Keep::nothing ? scatter_ns(2, 2, 2) : scatter_ns(1, 1, 0);
  }
  [[nodiscard]] std::int64_t gather_ns(std::int64_t q_tensors, std::int64_t kv_tensors, std::int64_t kv_element,
                                       std::int64_t scalars) const {
    return ulysses_ns([&](std::int64_t q, std::int64_t kv) {
      return (q_tensors * q * element_ + kv_tensors * kv * kv_element) * plan_.model.head_dim +
             scalars * q * size_of(DType::fp32);
    });
  }

  const Plan& plan_;
  const LayerPlan& layer_;
  const Hardware& hardware_;
  std::int64_t ring_;
  BusiestHeads heads_;
  std::int64_t io_row_, fp32_row_;  // bytes of one key row, k and v, of a rank's heads
  std::int64_t element_;
  StepPeers peers_;
  bool splits_;
  std::vector<std::vector<Moved>> hops_;  // rows, by step and ring rank
};

}  // namespace

std::int64_t PassCost::steps_ns() const {
  return std::accumulate(steps.begin(), steps.end(), std::int64_t{0},
                         [](std::int64_t sum, const StepCost& step) { return sum + step.step_ns; });
}

std::int64_t PassCost::total_ns() const {
  return enter_ns + steps_ns() + return_ns + leave_ns;
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

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The choice (paper section 04; system design, section 4.10): every placement is placed and measured once, its
// strategies are scored from the same demand, and a placement's layer kinds take their fastest strategy that fits.

#include "base/parallel.hpp"
#include "plan/balance.hpp"
#include "plan/choice_words.hpp"
#include "plan/cost.hpp"
#include "plan/plan_stages.hpp"
#include "plan/slices.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <limits>

namespace marble {
namespace {

/// One strategy of one layer kind.
struct Scored {
  LayerEstimate layer;
  std::int64_t memory_bytes = 0;
};

bool better(const Scored& a, const Scored& b, std::int64_t memory_limit) {
  const bool a_fits = a.memory_bytes <= memory_limit, b_fits = b.memory_bytes <= memory_limit;
  if (a_fits != b_fits) return a_fits;
  return a_fits ? a.layer.total_ns() < b.layer.total_ns() : a.memory_bytes < b.memory_bytes;
}

/// Times closer than this are equal to the model: a hundredth.
bool as_fast(std::int64_t ns, std::int64_t best_ns) {
  return ns - best_ns <= best_ns / 100;
}

/// Of a list whose first is the fastest that fits, brings the one that receives fewest keys among those as fast to the
/// front: what is moved is also held, and takes energy, which the model does not count.
template <typename T, typename Fits, typename Ns, typename Received>
void prefer_fewest_keys(std::vector<T>& sorted, Fits&& fits, Ns&& ns, Received&& received) {
  auto best = sorted.begin();
  for (auto it = sorted.begin(); it != sorted.end(); ++it)
    if (fits(*it) && as_fast(ns(*it), ns(sorted.front())) && received(*it) < received(*best)) best = it;
  std::rotate(sorted.begin(), best, best + 1);
}

bool placement_is_open(const Model& model, const Mesh& mesh, const PlanOptions& options) {
  return !options.placement && !model.order_dependent && mesh.ring > 1;
}

std::vector<Strategy> strategies(const Mesh& mesh, const PlanOptions& options, std::size_t layer) {
  if (!options.layer_strategies.empty()) return {options.layer_strategies[layer]};
  if (options.strategy) return {*options.strategy};
  if (mesh.ring == 1) return {Strategy::ring};
  return {Strategy::alltoall, Strategy::ring, Strategy::allgather};
}

Scored score(const Plan& plan, const LayerPlan& layer, DType dtype) {
  const LayerCost cost = estimate_layer(plan, layer, dtype);
  Scored scored;
  scored.layer = {
      .strategy = layer.strategy,
      .forward_ns = cost.forward.total_ns(),
      .backward_ns = cost.backward.total_ns(),
      .compute_ns = cost.compute_ns(),
      .memory_ns = cost.memory_ns(),
      .ulysses_ns = cost.forward.enter_ns + cost.forward.leave_ns + cost.backward.enter_ns + cost.backward.leave_ns,
      .step_busiest_over_mean = tile_balances(plan, layer).steps,
      .kv_tokens = received_rows(plan, layer)};
  scored.memory_bytes = layer_memory_bytes(plan, layer, dtype);
  return scored;
}

/// Strategies of one layer kind, best first; adds what the kind would take at best to `ideal`.
std::vector<Scored> score_layer(const Plan& plan, std::size_t l, const PlanOptions& options, DType dtype,
                                std::int64_t& ideal) {
  LayerPlan layer = measure_layer(plan, plan.model.layers[l], options.threads);
  std::vector<Scored> scored;
  for (const Strategy strategy : strategies(plan.mesh, options, l)) {
    set_strategy(plan, layer, strategy, options.fetch_tokens);
    scored.push_back(score(plan, layer, dtype));
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [&](const Scored& a, const Scored& b) { return better(a, b, plan.hardware.memory_bytes); });
  prefer_fewest_keys(
      scored, [&](const Scored& s) { return s.memory_bytes <= plan.hardware.memory_bytes; },
      [](const Scored& s) { return s.layer.total_ns(); }, [](const Scored& s) { return s.layer.kv_tokens; });
  ideal += plan.model.layers[l].count * ideal_ns(plan, layer, dtype);
  const LayerEstimate* other = scored.size() > 1 ? &scored[1].layer : nullptr;
  scored[0].layer.why = why_strategy(scored[0].layer, other, plan.layout.num_tokens());
  return scored;
}

/// The candidate that takes alternative `rank` of layer kind `varied`, and the best of the others.
Candidate make_candidate(const Plan& plan, const std::vector<std::vector<Scored>>& kinds, std::size_t varied,
                         std::size_t rank) {
  Candidate candidate{.mesh = plan.mesh, .canonical = plan.canonical, .placement = plan.placement};
  for (std::size_t l = 0; l < kinds.size(); ++l) {
    const Scored& scored = kinds[l][l == varied ? rank : 0];
    candidate.layers.push_back(scored.layer);
    candidate.model_ns += plan.model.layers[l].count * scored.layer.total_ns();
    candidate.memory_bytes = std::max(candidate.memory_bytes, scored.memory_bytes);
  }
  candidate.fits = candidate.memory_bytes <= plan.hardware.memory_bytes;
  return candidate;
}

/// One placement over one mesh.
struct Task {
  Mesh mesh;
  Placement placement = Placement::contiguous;
};

struct Scores {
  std::vector<Candidate> candidates;  // the best first
  std::int64_t ideal_ns = 0;          // what any placement takes over this mesh at best
};

Scores score_task(const Layout& layout, const Model& model, const PlanOptions& options, const Task& task, DType dtype) {
  const Plan plan = place_model(layout, model, task.mesh, options, task.placement);
  Scores scores;
  std::vector<std::vector<Scored>> kinds;
  for (std::size_t l = 0; l < model.layers.size(); ++l)
    kinds.push_back(score_layer(plan, l, options, dtype, scores.ideal_ns));
  scores.candidates = {make_candidate(plan, kinds, 0, 0)};
  for (std::size_t l = 0; l < kinds.size(); ++l)
    for (std::size_t rank = 1; rank < kinds[l].size(); ++rank)
      scores.candidates.push_back(make_candidate(plan, kinds, l, rank));
  return scores;
}

bool ranks_before(const Candidate& a, const Candidate& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.model_ns < b.model_ns : a.memory_bytes < b.memory_bytes;
}

/// Key tokens that the model's layers receive.
std::int64_t received(const Model& model, const Candidate& candidate) {
  std::int64_t tokens = 0;
  for (std::size_t l = 0; l < candidate.layers.size(); ++l)
    tokens += model.layers[l].count * candidate.layers[l].kv_tokens;
  return tokens;
}

/// The best candidate of another placement or mesh than the first.
const Candidate* runner_up(const std::vector<Candidate>& candidates) {
  const Candidate& best = candidates.front();
  for (const Candidate& candidate : candidates)
    if (candidate.placement != best.placement || candidate.mesh != best.mesh) return &candidate;
  return nullptr;
}

/// Scores candidates in two rounds: placements that keep samples together first; those that scatter them only over
/// meshes where an even spread would still gain a hundredth on the best so far.
class Chooser {
 public:
  Chooser(const Layout& layout, const Model& model, const PlanOptions& options, DType dtype)
      : layout_(layout), model_(model), options_(options), dtype_(dtype) {}

  Choice choose_among(const std::vector<Mesh>& meshes) {
    std::vector<Task> first;
    for (const Mesh& mesh : meshes) {
      first.push_back({mesh, options_.placement.value_or(Placement::contiguous)});
      if (placement_is_open(model_, mesh, options_)) first.push_back({mesh, Placement::dealt});
    }
    const std::vector<Scores> scores = run(first);
    std::vector<Task> second;
    for (const Mesh& mesh : meshes)
      if (placement_is_open(model_, mesh, options_)) consider(mesh, first, scores, second);
    run(second);
    std::vector<Candidate>& candidates = choice_.candidates;
    std::stable_sort(candidates.begin(), candidates.end(), ranks_before);
    // Over other meshes, Ulysses exchanges move other bytes.
    const Mesh mesh = candidates.front().mesh;
    prefer_fewest_keys(
        candidates, [&](const Candidate& c) { return c.fits && c.mesh == mesh; },
        [](const Candidate& c) { return c.model_ns; }, [&](const Candidate& c) { return received(model_, c); });
    choice_.why = why_candidate(candidates.front(), runner_up(candidates));
    add_left_out();
    return std::move(choice_);
  }

 private:
  /// Tasks run side by side with one thread each, so that unequal ones share the threads evenly.
  std::vector<Scores> run(const std::vector<Task>& tasks) {
    PlanOptions options = options_;
    if (tasks.size() > 1) options.threads = 1;
    std::vector<Scores> scores(tasks.size());
    parallel_for(static_cast<std::int64_t>(tasks.size()), options_.threads, [&](std::int64_t t) {
      const auto task = static_cast<std::size_t>(t);
      scores[task] = score_task(layout_, model_, options, tasks[task], dtype_);
    });
    for (const Scores& score : scores)
      choice_.candidates.insert(choice_.candidates.end(), score.candidates.begin(), score.candidates.end());
    return scores;
  }

  void consider(const Mesh& mesh, const std::vector<Task>& done, const std::vector<Scores>& scores,
                std::vector<Task>& next) {
    std::int64_t ideal = std::numeric_limits<std::int64_t>::max();
    for (std::size_t t = 0; t < done.size(); ++t)
      if (done[t].mesh == mesh) ideal = std::min(ideal, scores[t].ideal_ns);
    const auto best = std::min_element(choice_.candidates.begin(), choice_.candidates.end(), ranks_before);
    if (best->fits && ideal > best->model_ns - best->model_ns / 100) {
      choice_.left_out.push_back(fmt::format(
          "chunks and ptrr over {} x {}: spread evenly they would gain less than 1 %", mesh.ring, mesh.ulysses));
      return;
    }
    next.push_back({mesh, Placement::chunks});
    next.push_back({mesh, Placement::ptrr});
  }

  void add_left_out() {
    if (options_.placement) return;
    if (model_.order_dependent) {
      choice_.left_out.emplace_back("every placement but contiguous: the model has layers that depend on token order");
      return;
    }
    choice_.left_out.emplace_back("zigzag: chunks tries it, as two chunks a rank");
    choice_.left_out.emplace_back("striped: ptrr scatters as finely and balances better");
  }

  const Layout& layout_;
  const Model& model_;
  const PlanOptions& options_;
  DType dtype_;
  Choice choice_;
};

}  // namespace

Choice choose(const Layout& layout, const Model& model, const Mesh& mesh, const PlanOptions& options, DType dtype) {
  check_inputs(layout, model, mesh, options);
  return Chooser(layout, model, options, dtype).choose_among({mesh});
}

Choice choose_mesh(const Layout& layout, const Model& model, std::int32_t num_ranks, std::int32_t ranks_per_node,
                   const PlanOptions& options, DType dtype) {
  constexpr std::int32_t kMaxRanks = 1024;
  require(num_ranks >= 1 && num_ranks <= kMaxRanks, "{} ranks are not in 1..{}", num_ranks, kMaxRanks);
  require(ranks_per_node >= 1, "ranks_per_node {} is below 1", ranks_per_node);
  check_inputs(layout, model, {.ring = num_ranks, .ranks_per_node = ranks_per_node}, options);
  // Beyond this, shards are small and Ulysses inside the node is the better use of ranks (paper section 04).
  constexpr std::int32_t kMaxRing = 64;
  const std::int32_t limit = std::min({model.heads, ranks_per_node, num_ranks});
  std::vector<Mesh> meshes;
  for (std::int32_t ulysses = 1; ulysses <= limit; ++ulysses)
    if (num_ranks % ulysses == 0)
      meshes.push_back({.ring = num_ranks / ulysses, .ulysses = ulysses, .ranks_per_node = ranks_per_node});
  const std::size_t splits = meshes.size();
  while (meshes.size() > 1 && meshes.front().ring > kMaxRing) meshes.erase(meshes.begin());
  Choice choice = Chooser(layout, model, options, dtype).choose_among(meshes);
  if (meshes.size() < splits)
    choice.left_out.push_back(
        fmt::format("rings of more than {} ranks: a larger Ulysses degree fits a node", kMaxRing));
  choice.left_out.push_back(
      fmt::format("ulysses above {}: it would exceed the {} query heads, a node of {} ranks or the {} ranks", limit,
                  model.heads, ranks_per_node, num_ranks));
  return choice;
}

}  // namespace marble

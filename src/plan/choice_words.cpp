// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/choice_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace marble {
namespace {

double ms(std::int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

double over(std::int64_t a, std::int64_t b) {
  return b == 0 ? 1.0 : static_cast<double>(a) / static_cast<double>(b);
}

/// Time beyond the work of each step's slowest rank and what memory bounds: transfers that no work hides, and fixed
/// costs.
std::int64_t waiting_ns(const LayerEstimate& layer) {
  return layer.total_ns() - layer.compute_ns - layer.memory_ns - layer.ulysses_ns;
}

struct Saving {
  std::int64_t ns;
  const char* what;
};

/// What a candidate's layers cost in all, by cause.
struct Causes {
  std::int64_t compute = 0, memory = 0, waiting = 0, ulysses = 0;
};

Causes causes(const LayerEstimate& layer) {
  return {layer.compute_ns, layer.memory_ns, waiting_ns(layer), layer.ulysses_ns};
}

Saving largest_saving(const Causes& best, const Causes& other) {
  const std::array savings = {Saving{other.compute - best.compute, "the slowest rank of each step computes less"},
                              Saving{other.memory - best.memory, "fewer bytes are cleared, added and cast"},
                              Saving{other.waiting - best.waiting, "fewer transfers and fixed costs stay unhidden"},
                              Saving{other.ulysses - best.ulysses, "the Ulysses exchanges move less"}};
  return *std::max_element(savings.begin(), savings.end(),
                           [](const Saving& a, const Saving& b) { return a.ns < b.ns; });
}

/// The layer kind that takes the most of the candidate's time decides what the words are about.
std::size_t heaviest_layer(const Candidate& candidate) {
  const auto heaviest =
      std::max_element(candidate.layers.begin(), candidate.layers.end(),
                       [](const LayerEstimate& a, const LayerEstimate& b) { return a.total_ns() < b.total_ns(); });
  return static_cast<std::size_t>(heaviest - candidate.layers.begin());
}

std::string name_of(const Candidate& candidate) {
  return fmt::format("{} over {} x {}", to_string(candidate.placement), candidate.mesh.ring, candidate.mesh.ulysses);
}

}  // namespace

std::string why_strategy(const LayerEstimate& chosen, const LayerEstimate* other, std::int64_t num_tokens) {
  const std::string keys = fmt::format("{:.3f} N keys received", over(chosen.kv_tokens, num_tokens));
  if (other == nullptr)
    return fmt::format("{} was asked for, or is the only one: {}", to_string(chosen.strategy), keys);
  if (other->total_ns() < chosen.total_ns() && other->kv_tokens > chosen.kv_tokens)
    return fmt::format(
        "{} receives fewest keys of all within 1 %: {}, against {:.3f} N of {} ({:.3f} ms and {:.3f} ms)",
        to_string(chosen.strategy), keys, over(other->kv_tokens, num_tokens), to_string(other->strategy),
        ms(chosen.total_ns()), ms(other->total_ns()));
  if (other->total_ns() < chosen.total_ns())
    return fmt::format("{} fits the memory; {} would take {:.3f} ms, against {:.3f} ms", to_string(chosen.strategy),
                       to_string(other->strategy), ms(other->total_ns()), ms(chosen.total_ns()));
  const Saving saving = largest_saving(causes(chosen), causes(*other));
  return fmt::format("{} takes {:.3f} ms a layer, {} {:.3f} ms: {} (by {:.3f} ms); {}, against {:.3f} N",
                     to_string(chosen.strategy), ms(chosen.total_ns()), to_string(other->strategy),
                     ms(other->total_ns()), saving.what, ms(saving.ns), keys, over(other->kv_tokens, num_tokens));
}

std::string why_candidate(const Candidate& best, const Candidate* other) {
  if (other == nullptr)
    return fmt::format("{} is the only one: {:.3f} ms for all layers", name_of(best), ms(best.model_ns));
  if (!other->fits && best.fits)
    return fmt::format("{} fits the memory; {} does not ({:.1f} GB)", name_of(best), name_of(*other),
                       static_cast<double>(other->memory_bytes) / 1e9);
  if (best.fits && other->model_ns < best.model_ns)
    return fmt::format("{} receives fewest keys of all within 1 %: {:.3f} ms for all layers, {} {:.3f} ms",
                       name_of(best), ms(best.model_ns), name_of(*other), ms(other->model_ns));
  const std::size_t l = heaviest_layer(best);
  const LayerEstimate &mine = best.layers[l], &theirs = other->layers[l];
  const Saving saving = largest_saving(causes(mine), causes(theirs));
  return fmt::format(
      "{} takes {:.3f} ms for all layers, {:.2f} times as fast as {} ({:.3f} ms): {}; step by step its busiest rank "
      "does "
      "{:.3f} of the mean, against {:.3f}",
      name_of(best), ms(best.model_ns), over(other->model_ns, best.model_ns), name_of(*other), ms(other->model_ns),
      saving.what, mine.step_busiest_over_mean, theirs.step_busiest_over_mean);
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/choice.hpp"

#include <array>

namespace marble {
namespace {

std::string needs_of(Rung rung) {
  switch (rung) {
    case Rung::copy:
      return "peer access between the node's GPUs";
    case Rung::put:
      return "NCCL 2.29.2 or newer, and its windows between all ranks";
    default:
      return "NCCL 2.14 or newer";
  }
}

}  // namespace

std::string_view to_string(Rung rung) {
  constexpr std::array<std::string_view, 4> kNames = {"auto", "copy", "put", "sendrecv"};
  return kNames[static_cast<std::size_t>(rung)];
}

std::vector<PossibleRung> possible_rungs(std::int32_t num_ranks, std::int32_t ranks_per_node) {
  std::vector<PossibleRung> rungs;
  for (const Rung rung : nccl::kLadder)
    if (num_ranks > 1 && (rung != Rung::copy || num_ranks <= ranks_per_node)) rungs.push_back({rung, needs_of(rung)});
  return rungs;
}

}  // namespace marble

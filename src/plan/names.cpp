// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"
#include "marble/plan.hpp"

#include <fmt/ranges.h>

#include <array>

namespace marble {
namespace {

constexpr std::array kPlacements = {Placement::contiguous, Placement::zigzag, Placement::striped,
                                    Placement::ptrr,       Placement::chunks, Placement::dealt};
constexpr std::array kStrategies = {Strategy::ring, Strategy::alltoall, Strategy::allgather};
constexpr std::array kKeeps = {Keep::nothing, Keep::scattered, Keep::fetched};
constexpr std::array kCanonicals = {Canonical::sequence, Canonical::stack};

template <typename Values>
auto parse(std::string_view name, std::string_view what, const Values& values) {
  std::vector<std::string_view> accepted;
  for (const auto value : values) {
    if (to_string(value) == name) return value;
    accepted.push_back(to_string(value));
  }
  throw InvalidArgument(fmt::format("{} '{}' is not one of {}", what, name, fmt::join(accepted, ", ")));
}

}  // namespace

std::string_view to_string(Placement placement) {
  switch (placement) {
    case Placement::contiguous:
      return "contiguous";
    case Placement::zigzag:
      return "zigzag";
    case Placement::striped:
      return "striped";
    case Placement::ptrr:
      return "ptrr";
    case Placement::chunks:
      return "chunks";
    case Placement::dealt:
      return "dealt";
  }
  throw InternalError("placement out of range");
}

std::string_view to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::ring:
      return "ring";
    case Strategy::alltoall:
      return "alltoall";
    case Strategy::allgather:
      return "allgather";
  }
  throw InternalError("strategy out of range");
}

std::string_view to_string(Keep keep) {
  switch (keep) {
    case Keep::nothing:
      return "nothing";
    case Keep::scattered:
      return "scattered";
    case Keep::fetched:
      return "fetched";
  }
  throw InternalError("keep out of range");
}

Keep parse_keep(std::string_view name) {
  return parse(name, "keep", kKeeps);
}
Placement parse_placement(std::string_view name) {
  return parse(name, "placement", kPlacements);
}
Strategy parse_strategy(std::string_view name) {
  return parse(name, "strategy", kStrategies);
}
Canonical parse_canonical(std::string_view name) {
  return parse(name, "canonical", kCanonicals);
}

}  // namespace marble

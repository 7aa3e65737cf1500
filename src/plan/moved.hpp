// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What one rank moves over its links inside and across nodes, and how long that takes.

#include "marble/plan.hpp"

#include <algorithm>
#include <cstdint>

namespace marble {

/// Rows or bytes, by link.
struct Moved {
  std::int64_t node = 0;
  std::int64_t network = 0;

  void add(std::int64_t amount, bool same_node) { (same_node ? node : network) += amount; }
};

[[nodiscard]] constexpr Moved longer(const Moved& a, const Moved& b) {
  return {std::max(a.node, b.node), std::max(a.network, b.network)};
}

[[nodiscard]] constexpr std::int64_t node_of(const Mesh& mesh, std::int64_t ring_rank, std::int64_t ulysses_rank) {
  return (ring_rank * mesh.ulysses + ulysses_rank) / mesh.ranks_per_node;
}

/// bytes over a link, or a memory, of `mbytes_per_s`.
[[nodiscard]] constexpr std::int64_t travel_ns(std::int64_t bytes, std::int64_t mbytes_per_s) {
  return static_cast<std::int64_t>(static_cast<__int128>(bytes) * 1000 / mbytes_per_s);
}

/// Bytes over both links side by side.
[[nodiscard]] constexpr std::int64_t travel_ns(const Hardware& hardware, const Moved& bytes) {
  return std::max(travel_ns(bytes.node, hardware.node_mbytes_per_s),
                  travel_ns(bytes.network, hardware.network_mbytes_per_s));
}

}  // namespace marble

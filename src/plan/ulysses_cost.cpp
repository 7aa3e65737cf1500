// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/ulysses_cost.hpp"

#include "plan/heads.hpp"
#include "plan/moved.hpp"

#include <algorithm>

namespace marble {
namespace {

constexpr std::int64_t kFp32 = 4;

/// Bytes of one row of some heads: to travel, and for kernels to read and write.
struct RowBytes {
  std::int64_t travelling = 0;
  std::int64_t touched = 0;
};

RowBytes row_bytes(const UlyssesRow& row, const HeadShare& heads, std::int64_t head_dim, std::int64_t element) {
  const std::int64_t q = heads.q.count * (row.q_tensors * head_dim * element + row.scalars * kFp32);
  const std::int64_t keys = heads.kv.count * row.kv_tensors * head_dim * (row.sums_keys ? kFp32 : element);
  return {q + keys, 2 * q + (row.sums_keys ? 3 : 2) * keys};
}

}  // namespace

std::int64_t ulysses_ns(const Plan& plan, const UlyssesRow& row, std::int64_t element) {
  const std::int32_t ulysses = plan.mesh.ulysses;
  if (ulysses == 1) return 0;
  const auto bytes_of = [&](std::int32_t u) {
    const RowBytes bytes = row_bytes(row, head_share(plan.model, ulysses, u), plan.model.head_dim, element);
    return RowBytes{plan.rows * bytes.travelling, plan.rows * bytes.touched};
  };
  const auto memory_ns = [&](std::int64_t bytes) { return travel_ns(bytes, plan.hardware.memory_mbytes_per_s); };
  std::int64_t slowest = 0;
  for (std::int64_t r = 0; r < plan.mesh.ring; ++r)
    for (std::int32_t u = 0; u < ulysses; ++u) {
      const RowBytes own = bytes_of(u);
      Moved one_way, other_way;
      std::int64_t packed = 0;
      for (std::int32_t peer = 0; peer < ulysses; ++peer) {
        if (peer == u) continue;
        const bool same_node = node_of(plan.mesh, r, peer) == node_of(plan.mesh, r, u);
        const RowBytes others = bytes_of(peer);
        one_way.add(others.travelling, same_node);  // of this rank's rows
        other_way.add(own.travelling, same_node);   // of the peer's
        packed += others.touched;
      }
      const std::int64_t travel = travel_ns(plan.hardware, longer(one_way, other_way));
      slowest = std::max(slowest, std::max(travel, memory_ns(own.touched)) + memory_ns(packed));
    }
  return slowest + plan.hardware.exchange_ns;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Heads of a Ulysses rank: consecutive query heads, as equal as whole heads allow, and the key heads that they read.
// Key heads that several ranks read are replicated; their gradients are summed in fp32 by the owner of the rows.

#include "marble/plan.hpp"

#include <cstdint>

namespace marble {

struct HeadRange {
  std::int32_t begin = 0;
  std::int32_t count = 0;

  [[nodiscard]] std::int32_t end() const { return begin + count; }
};

struct HeadShare {
  HeadRange q;
  HeadRange kv;
};

[[nodiscard]] constexpr HeadShare head_share(const Model& model, std::int32_t ulysses, std::int32_t ulysses_rank) {
  const std::int32_t begin = model.heads * ulysses_rank / ulysses, end = model.heads * (ulysses_rank + 1) / ulysses;
  const std::int32_t group = model.heads / model.kv_heads;
  const std::int32_t kv_begin = begin / group, kv_end = (end - 1) / group + 1;
  return {{begin, end - begin}, {kv_begin, kv_end - kv_begin}};
}

/// True when some key head is read by two Ulysses ranks.
[[nodiscard]] constexpr bool replicates_key_heads(const Model& model, std::int32_t ulysses) {
  for (std::int32_t u = 1; u < ulysses; ++u)
    if (head_share(model, ulysses, u).kv.begin < head_share(model, ulysses, u - 1).kv.end()) return true;
  return false;
}

}  // namespace marble

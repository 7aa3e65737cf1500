// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Predicted time of a Ulysses exchange.

#include "marble/plan.hpp"

#include <cstdint>

namespace marble {

/// What an exchange moves of a row: tensors like q, tensors like k, and scalars of one fp32 a query head.
struct UlyssesRow {
  std::int64_t q_tensors = 0;
  std::int64_t kv_tensors = 0;
  std::int64_t scalars = 0;
  bool sums_keys = false;  // those like k are fp32, and summed by their owner
};

/// The slowest rank of any group, 0 without Ulysses: a scatter, or the gather that is its reverse. The other ranks'
/// heads of its own rows a rank packs before they travel, or unpacks after that; its own heads of these rows it copies
/// while they do. `element`: bytes of the tensors' dtype.
[[nodiscard]] std::int64_t ulysses_ns(const Plan& plan, const UlyssesRow& row, std::int64_t element);

}  // namespace marble

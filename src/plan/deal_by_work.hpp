// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// PTRR's deal (paper section 03) of equally long units: sorted by falling work, in rounds of one unit a rank. The paper
// reverses every other round; here each unit of a round goes where queries' and keys' work are lowest, which levels the
// steps too: a rank whose keys more queries see slows whichever rank meets them.

#include <cstdint>
#include <span>
#include <vector>

namespace marble {

/// The ring rank of every unit. query_work and key_work: legal pairs of each unit's queries, and of its keys.
[[nodiscard]] std::vector<std::int32_t> deal_by_work(std::span<const std::int64_t> query_work,
                                                     std::span<const std::int64_t> key_work, std::int32_t ring);

}  // namespace marble

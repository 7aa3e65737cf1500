// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Why a choice came out as it did, in words.

#include "marble/cost.hpp"

#include <cstdint>
#include <string>

namespace marble {

/// One strategy of a layer kind against the next best one of the same placement; `other` null: there was none.
[[nodiscard]] std::string why_strategy(const LayerEstimate& chosen, const LayerEstimate* other,
                                       std::int64_t num_tokens);

/// The best candidate against the best one of another placement or mesh; `other` null: there was none.
[[nodiscard]] std::string why_candidate(const Candidate& best, const Candidate* other);

}  // namespace marble

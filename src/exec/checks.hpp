// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the executor refuses, before any exchange. All throw InvalidArgument.

#include "marble/attention.hpp"

namespace marble {

/// The plan's own tensors and casts have the shapes that its header states, and it was made for this rank and mesh.
void check_plan(const RankPlan& plan, const Transport& transport);

void check_options(const AttentionOptions& options);

/// Saved memory is there when the plan keeps something.
void check_saved(const void* saved, std::int64_t saved_bytes);

void check_call(const RankPlan& plan, DType dtype, const ForwardCall& call);
void check_call(const RankPlan& plan, DType dtype, const BackwardCall& call);

}  // namespace marble

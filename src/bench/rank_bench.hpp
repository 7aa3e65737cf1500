// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One rank's samples of a benchmark.

#include "marble/bench.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace marble {

/// What is timed: the parts of each pass, and both passes of the whole layer.
enum class Timed {
  forward,
  forward_compute,
  forward_communication,
  backward,
  backward_compute,
  backward_communication,
  both
};
inline constexpr int kNumTimed = 7;

struct RankSamples {
  enum Count { forward_bytes, backward_bytes, memory, workspace, kNumCounts };
  std::array<std::vector<double>, kNumTimed> ms;  // by repeat
  std::array<double, kNumCounts> counts{};        // doubles, so that one message carries all
};

/// Collective. Rank 0 gets every rank's samples, the others none.
[[nodiscard]] std::vector<RankSamples> sample_rank(const Plan& plan, const BenchOptions& options, int threads,
                                                   Transport& transport);

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Executes the rank plans of a whole mesh on integers: attention replaced by counting legal pairs, so that coverage is
// checked exactly. Keys carry their (position, head) as a label; a work checks that its key buffer holds what its
// segments say. Every output counts the keys that its query saw, every gradient the queries that saw its key.

#include "mask/random_layout.hpp"

#include "marble/plan.hpp"

#include <cstdint>
#include <vector>

namespace marble::testing {

class CountingRanks {
 public:
  explicit CountingRanks(const Plan& plan, std::int32_t layer = 0);

  /// Backward finds what the plan saves as forward left it, and everything else unwritten.
  void forward();
  void backward();

  /// [position][head], gathered from all ranks; -1 where nobody wrote.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> gather(Tensor tensor) const;
  [[nodiscard]] const RankPlan& rank_plan(std::int32_t rank) const { return plans_[static_cast<std::size_t>(rank)]; }

 private:
  using Buffer = std::vector<std::int64_t>;  // [row][head]

  void fill_inputs(bool keep_saved);
  void run(bool backward);
  void exchange(const std::vector<std::int32_t>& numbers);
  void attend_forward(std::size_t rank, const Work& work);
  void attend_backward(std::size_t rank, const Work& work);
  void check_keys(std::size_t rank, const Work& work) const;
  void finish(std::size_t rank, const Step& step);
  [[nodiscard]] bool legal(std::size_t rank, const Work& work, BlockClass block_class, std::int64_t q_row,
                           std::int64_t k_row) const;
  [[nodiscard]] std::int64_t& at(std::size_t rank, std::int32_t buffer, std::int64_t row, std::int32_t head);

  const Plan& plan_;
  std::vector<TokenTracks> tracks_;  // by position
  std::vector<RankPlan> plans_;
  std::vector<std::vector<std::int64_t>> q_position_;  // [rank][query row], -1 on pads
  std::vector<std::vector<std::int64_t>> q_canonical_;
  std::vector<std::vector<Buffer>> buffers_;  // [rank][buffer]
  std::vector<Buffer> state_, dq_;            // [rank][query row][head]
};

}  // namespace marble::testing

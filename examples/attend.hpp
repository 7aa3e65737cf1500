// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Forward and backward of one attention layer on one rank, with host tensors in fp32: what 02_ranks_as_threads and
// 03_mpi share. Whole tensors are [tokens, heads, dim] in pack order; each rank takes its rows and puts its results
// back.

#include "marble/attention.hpp"
#include "marble/backend.hpp"
#include "marble/plan.hpp"
#include "marble/tensor.hpp"
#include "marble/transport.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace example {

using Values = std::vector<float>;

/// q, dout, out, dq: [tokens, heads, dim]; k, v, dk, dv: [tokens, kv_heads, dim].
struct Tensors {
  Values q, k, v, dout;
  Values out, dq, dk, dv;
};

inline Tensors random_tensors(const marble::Plan& plan, std::uint32_t seed) {
  const auto tokens = static_cast<std::size_t>(plan.layout.num_tokens());
  const auto dim = static_cast<std::size_t>(plan.model.head_dim);
  const std::size_t queries = tokens * static_cast<std::size_t>(plan.model.heads) * dim;
  const std::size_t keys = tokens * static_cast<std::size_t>(plan.model.kv_heads) * dim;
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::size_t count) {
    Values values(count);
    for (float& value : values) value = normal(engine);
    return values;
  };
  Tensors tensors{fill(queries), fill(keys), fill(keys), fill(queries), {}, {}, {}, {}};
  tensors.out.resize(queries);
  tensors.dq.resize(queries);
  tensors.dk.resize(keys);
  tensors.dv.resize(keys);
  return tensors;
}

/// One rank's rows of a whole tensor, and the way back.
class Shard {
 public:
  Shard(const marble::Plan& plan, const std::vector<std::int64_t>& positions, std::int32_t heads)
      : positions_(positions),
        width_(std::int64_t{heads} * plan.model.head_dim),
        values_(static_cast<std::size_t>(plan.rows * width_)),
        view_(marble::dense_view(values_.data(), marble::DType::fp32, plan.rows, heads, plan.model.head_dim)) {}
  Shard(const Shard&) = delete;  // view_ points into values_
  Shard& operator=(const Shard&) = delete;

  void take(const Values& whole) {
    for (std::size_t row = 0; row < positions_.size(); ++row) {
      std::copy_n(whole.begin() + positions_[row] * width_, width_, at(row));
    }
  }
  void put(Values& whole) {
    for (std::size_t row = 0; row < positions_.size(); ++row) {
      std::copy_n(at(row), width_, whole.begin() + positions_[row] * width_);
    }
  }
  [[nodiscard]] const marble::TensorView& view() const { return view_; }

 private:
  Values::iterator at(std::size_t row) { return values_.begin() + static_cast<std::int64_t>(row) * width_; }

  const std::vector<std::int64_t>& positions_;
  std::int64_t width_;
  Values values_;
  marble::TensorView view_;
};

/// Runs this rank's part of forward and backward and writes its rows of out, dq, dk and dv.
inline void attend(const marble::Plan& plan, marble::Transport& transport, Tensors& tensors) {
  const std::int32_t heads = plan.model.heads, kv_heads = plan.model.kv_heads;
  const auto positions = marble::rank_positions(plan, transport.rank());
  Shard q(plan, positions, heads), dout(plan, positions, heads), out(plan, positions, heads),
      dq(plan, positions, heads);
  Shard k(plan, positions, kv_heads), v(plan, positions, kv_heads);
  Shard dk(plan, positions, kv_heads), dv(plan, positions, kv_heads);
  std::vector<float> lse(static_cast<std::size_t>(plan.rows * heads));
  const auto lse_view = marble::dense_view(lse.data(), marble::DType::fp32, plan.rows, heads, 1);

  const auto backend = marble::make_cpu_backend(1);
  const marble::RankPlan rank_plan = marble::make_rank_plan(plan, transport.rank());
  const marble::AttentionOptions options{1.0 / std::sqrt(static_cast<double>(plan.model.head_dim)), 0.0};
  marble::BoundAttention attention(rank_plan, marble::DType::fp32, options, *backend, transport);

  q.take(tensors.q), k.take(tensors.k), v.take(tensors.v), dout.take(tensors.dout);
  marble::attention_forward(attention, {q.view(), k.view(), v.view(), out.view(), lse_view});
  marble::attention_backward(
      attention, {q.view(), k.view(), v.view(), out.view(), lse_view, dout.view(), dq.view(), dk.view(), dv.view()});
  out.put(tensors.out), dq.put(tensors.dq), dk.put(tensors.dk), dv.put(tensors.dv);
}

inline float largest_difference(const Values& a, const Values& b) {
  float difference = 0.0F;
  for (std::size_t i = 0; i < a.size(); ++i) difference = std::max(difference, std::abs(a[i] - b[i]));
  return difference;
}

}  // namespace example

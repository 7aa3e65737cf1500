// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What other context-parallel systems do to partial results, run through our own executor and kernels: each step's
// output is normalised, rounded and merged by LSE, and gradients are rounded where they cross steps and ranks.

#include "backend/decorator.hpp"
#include "base/numeric.hpp"
#include "plan/rank_plan_parts.hpp"
#include "support/rank_plan_edit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace marble::test {

/// What is rounded to the dtype of the inputs. All false: MARBLE.
struct Losses {
  bool partial_outputs = false;  // each step's normalised output, before it is merged
  bool merged_outputs = false;   // and the running output after each merge
  bool query_gradient = false;   // dQ after each step
  bool key_partials = false;     // each step's dK and dV
  bool key_sums = false;         // and their sum after each addition
};

class LossyBackend final : public BackendDecorator {
 public:
  LossyBackend(std::unique_ptr<Backend> inner, const Losses& losses)
      : BackendDecorator(*inner), owned_(std::move(inner)), losses_(losses) {}

  [[nodiscard]] std::unique_ptr<BoundPlan> bind(const RankPlan& plan) override {
    auto bound = std::make_unique<Bound>();
    RankPlanParts parts = parts_of(plan);
    // Every step starts and ends each of its query blocks: no state is carried.
    if (losses_.partial_outputs)
      for (Item& item : parts.items) item.flags = Item::kFirst | Item::kLast;
    bound->original = &plan;
    bound->plan = assemble(parts);
    bound->inner = inner_.bind(bound->plan);
    return bound;
  }

  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override {
    const auto& bound = static_cast<const Bound&>(plan);
    if (!losses_.partial_outputs) return inner_.forward(*bound.inner, work, tensors, options);
    dtype_ = tensors.q.dtype;
    std::vector<float> out_memory(static_cast<std::size_t>(tensors.out.rows * tensors.out.heads * tensors.out.dim));
    std::vector<float> lse_memory(static_cast<std::size_t>(tensors.lse.rows * tensors.lse.heads));
    ForwardTensors partial = tensors;
    partial.out = dense_view(out_memory.data(), dtype_, tensors.out.rows, tensors.out.heads, tensors.out.dim);
    partial.lse = dense_view(lse_memory.data(), DType::fp32, tensors.lse.rows, tensors.lse.heads, 1);
    inner_.forward(*bound.inner, work, partial, options);
    const RankPlanHeader& header = bound.original->header();
    running_.resize(out_memory.size());
    const Work& entry = bound.original->works()[static_cast<std::size_t>(work)];
    for (std::int64_t i = entry.forward_items.begin; i < entry.forward_items.end; ++i) {
      const Item& item = bound.original->items()[static_cast<std::size_t>(i)];
      const std::int64_t begin = std::int64_t{item.block} * header.block;
      const std::int64_t end = std::min(begin + header.block, header.valid_query_rows);
      for (std::int64_t row = begin; row < end; ++row)
        for (std::int32_t head = 0; head < tensors.out.heads; ++head)
          merge(partial, tensors, row, head, (item.flags & Item::kFirst) != 0);
    }
  }

  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    const auto& bound = static_cast<const Bound&>(plan);
    dtype_ = tensors.q.dtype;
    inner_.backward(*bound.inner, work, tensors, options);
    if (losses_.key_partials)
      for (const TensorView& view : {tensors.dk, tensors.dv}) round(static_cast<float*>(view.data), view.bytes() / 4);
    if (losses_.query_gradient)
      round(static_cast<float*>(tensors.dq_accumulator), inner_.dq_accumulator_bytes(*bound.original) / 4);
  }

  void copy(std::span<const Copy> copies) override {
    inner_.copy(copies);
    for (const Copy& copy : copies)
      if (copy.add && losses_.key_sums) round(static_cast<float*>(copy.target.data), copy.target.bytes() / 4);
  }

 private:
  struct Bound final : BoundPlan {
    const RankPlan* original = nullptr;
    RankPlan plan;
    std::unique_ptr<BoundPlan> inner;
  };

  /// Dense fp32 values, rounded to the dtype of the inputs in place. Memory that nothing wrote holds NaN, and keeps it.
  void round(float* values, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) values[i] = rounded(values[i]);
  }
  [[nodiscard]] float rounded(float value) const {
    std::uint32_t bits = 0;
    store_element(&bits, dtype_, 0, value);
    return load_element(&bits, dtype_, 0);
  }

  void merge(const ForwardTensors& partial, const ForwardTensors& target, std::int64_t row, std::int32_t head,
             bool first) {
    const std::int64_t scalar = row * partial.lse.heads + head;
    const std::int64_t target_scalar = row * target.lse.row_stride + head * target.lse.head_stride;
    const float added = load_element(partial.lse.data, DType::fp32, scalar);
    const float before = first ? -INFINITY : load_element(target.lse.data, DType::fp32, target_scalar);
    const float max = std::max(before, added);
    const float lse = std::isinf(max) ? max : max + std::log(std::exp(before - max) + std::exp(added - max));
    const float keep = std::isinf(before) ? 0.0F : std::exp(before - lse);
    const float take = std::isinf(added) ? 0.0F : std::exp(added - lse);
    for (std::int64_t d = 0; d < target.out.dim; ++d) {
      const std::int64_t at = scalar * target.out.dim + d;
      float& running = running_[static_cast<std::size_t>(at)];
      const float value = load_element(partial.out.data, dtype_, at);
      running = (first ? 0.0F : running * keep) + value * take;
      if (losses_.merged_outputs) running = rounded(running);
      store_element(target.out.data, dtype_, row * target.out.row_stride + head * target.out.head_stride + d, running);
    }
    store_element(target.lse.data, DType::fp32, target_scalar, lse);
  }

  std::unique_ptr<Backend> owned_;
  Losses losses_;
  DType dtype_ = DType::fp32;
  std::vector<float> running_;  // merged output, fp32
};

}  // namespace marble::test

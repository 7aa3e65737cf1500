// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rank plans taken apart, so that tests can break them.

#include "backend/decorator.hpp"
#include "plan/rank_plan_parts.hpp"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace marble::test {

[[nodiscard]] inline RankPlanParts parts_of(const RankPlan& plan) {
  const auto copy = [](auto section) { return std::vector(section.begin(), section.end()); };
  RankPlanParts parts;
  parts.header = plan.header();
  parts.buffers = copy(plan.buffers());
  parts.head_map = copy(plan.head_map());
  parts.query_segments = copy(plan.query_segments());
  parts.segments = copy(plan.segments());
  parts.rules = copy(plan.rules());
  parts.forward_steps = copy(plan.forward_steps());
  parts.backward_steps = copy(plan.backward_steps());
  parts.works = copy(plan.works());
  parts.items = copy(plan.items());
  parts.runs = copy(plan.runs());
  parts.key_valid = copy(plan.key_valid());
  parts.exchanges = copy(plan.exchanges());
  parts.transfers = copy(plan.transfers());
  parts.finishes = copy(plan.finishes());
  return parts;
}

/// Computes a changed copy of every plan that it is given.
class EditingBackend final : public BackendDecorator {
 public:
  using Edit = std::function<void(RankPlanParts&)>;

  EditingBackend(std::unique_ptr<Backend> inner, Edit edit)
      : BackendDecorator(*inner), owned_(std::move(inner)), edit_(std::move(edit)) {}

  [[nodiscard]] std::unique_ptr<BoundPlan> bind(const RankPlan& plan) override {
    RankPlanParts parts = parts_of(plan);
    edit_(parts);
    auto bound = std::make_unique<Bound>();
    bound->plan = assemble(parts);
    bound->inner = inner_.bind(bound->plan);
    return bound;
  }
  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override {
    inner_.forward(*static_cast<const Bound&>(plan).inner, work, tensors, options);
  }
  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    inner_.backward(*static_cast<const Bound&>(plan).inner, work, tensors, options);
  }

 private:
  struct Bound final : BoundPlan {
    RankPlan plan;
    std::unique_ptr<BoundPlan> inner;
  };

  std::unique_ptr<Backend> owned_;
  Edit edit_;
};

}  // namespace marble::test

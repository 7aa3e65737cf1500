// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rank plans taken apart, so that tests can break them.

#include "backend/decorator.hpp"
#include "plan/rank_plan_parts.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace marble::test {

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

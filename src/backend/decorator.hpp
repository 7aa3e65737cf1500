// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A backend that hands every call to another one. Derive from it to watch or to change single calls.

#include "marble/backend.hpp"

namespace marble {

class BackendDecorator : public Backend {
 public:
  /// `inner` must outlive it.
  explicit BackendDecorator(Backend& inner) : inner_(inner) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  void check_supported(const RankPlan& plan, DType dtype, const AttentionOptions& options) const override {
    inner_.check_supported(plan, dtype, options);
  }
  [[nodiscard]] std::unique_ptr<BoundPlan> bind(const RankPlan& plan) override { return inner_.bind(plan); }
  [[nodiscard]] std::int64_t state_bytes(const RankPlan& plan) const override { return inner_.state_bytes(plan); }
  [[nodiscard]] std::int64_t dq_accumulator_bytes(const RankPlan& plan) const override {
    return inner_.dq_accumulator_bytes(plan);
  }
  [[nodiscard]] void* allocate(std::int64_t bytes) override { return inner_.allocate(bytes); }
  void free(void* data) noexcept override { inner_.free(data); }
  void copy_from_host(void* target, const void* source, std::int64_t bytes) override {
    inner_.copy_from_host(target, source, bytes);
  }
  void copy_to_host(void* target, const void* source, std::int64_t bytes) override {
    inner_.copy_to_host(target, source, bytes);
  }
  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override {
    inner_.forward(plan, work, tensors, options);
  }
  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    inner_.backward(plan, work, tensors, options);
  }
  void prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                        std::int64_t valid_rows) override {
    inner_.prepare_backward(out, dout, delta, valid_rows);
  }
  void finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) override {
    inner_.finish_dq(plan, dq_accumulator, dq);
  }
  void cast(const TensorView& source, const TensorView& target) override { inner_.cast(source, target); }
  void copy(std::span<const Copy> copies) override { inner_.copy(copies); }
  void zero(void* data, std::int64_t bytes) override { inner_.zero(data, bytes); }
  void synchronize() override { inner_.synchronize(); }
  [[nodiscard]] std::unique_ptr<Timeline> make_timeline() override { return inner_.make_timeline(); }
  [[nodiscard]] std::int64_t tiles_computed() const override { return inner_.tiles_computed(); }
  [[nodiscard]] bool rounds_products() const override { return inner_.rounds_products(); }

 protected:
  Backend& inner_;
};

}  // namespace marble

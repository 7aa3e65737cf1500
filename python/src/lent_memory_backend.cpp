// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "lent_memory_backend.hpp"

#include <cstdint>
#include <string_view>
#include <utility>

namespace nb = nanobind;

namespace marble::python {
namespace {

class LentMemoryBackend final : public Backend {
 public:
  LentMemoryBackend(std::unique_ptr<Backend> inner, nb::object memory)
      : inner_(std::move(inner)), memory_(std::move(memory)) {}

  [[nodiscard]] void* allocate(std::int64_t bytes) override {
    const nb::gil_scoped_acquire held;
    return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(memory_.attr("allocate")(bytes)));
  }
  void free(void* data) noexcept override {
    const nb::gil_scoped_acquire held;
    try {
      memory_.attr("free")(reinterpret_cast<std::uintptr_t>(data));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("marble: giving workspace back");
    }
  }

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  void check_supported(const RankPlan& plan, DType dtype, const AttentionOptions& options) const override {
    inner_->check_supported(plan, dtype, options);
  }
  [[nodiscard]] std::unique_ptr<BoundPlan> bind(const RankPlan& plan) override { return inner_->bind(plan); }
  [[nodiscard]] std::int64_t state_bytes(const RankPlan& plan) const override { return inner_->state_bytes(plan); }
  [[nodiscard]] std::int64_t dq_accumulator_bytes(const RankPlan& plan) const override {
    return inner_->dq_accumulator_bytes(plan);
  }
  void copy_from_host(void* target, const void* source, std::int64_t bytes) override {
    inner_->copy_from_host(target, source, bytes);
  }
  void copy_to_host(void* target, const void* source, std::int64_t bytes) override {
    inner_->copy_to_host(target, source, bytes);
  }
  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override {
    inner_->forward(plan, work, tensors, options);
  }
  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    inner_->backward(plan, work, tensors, options);
  }
  void prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                        std::int64_t valid_rows) override {
    inner_->prepare_backward(out, dout, delta, valid_rows);
  }
  void finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) override {
    inner_->finish_dq(plan, dq_accumulator, dq);
  }
  void cast(const TensorView& source, const TensorView& target) override { inner_->cast(source, target); }
  void pack(const TensorView& source, void* target) override { inner_->pack(source, target); }
  void unpack(const void* source, const TensorView& target, bool add) override { inner_->unpack(source, target, add); }
  void zero(void* data, std::int64_t bytes) override { inner_->zero(data, bytes); }
  void synchronize() override { inner_->synchronize(); }
  [[nodiscard]] std::unique_ptr<Timeline> make_timeline() override { return inner_->make_timeline(); }
  [[nodiscard]] std::int64_t tiles_computed() const override { return inner_->tiles_computed(); }
  [[nodiscard]] bool rounds_products() const override { return inner_->rounds_products(); }

 private:
  std::unique_ptr<Backend> inner_;
  nb::object memory_;
};

}  // namespace

std::unique_ptr<Backend> make_lent_memory_backend(std::unique_ptr<Backend> inner, nb::object memory) {
  return std::make_unique<LentMemoryBackend>(std::move(inner), std::move(memory));
}

}  // namespace marble::python

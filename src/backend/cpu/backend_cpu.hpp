// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cpu/bound_plan.hpp"
#include "backend/cpu/kernels.hpp"

#include "marble/backend.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace marble::cpu {

/// Attention on the cores of one process. Results do not depend on the number of threads.
class CpuBackend final : public Backend {
 public:
  /// `num_threads` 0: all cores.
  CpuBackend(int num_threads, const Kernels& kernels);

  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  void check_supported(const RankPlan& plan, DType dtype, const AttentionOptions& options) const override;
  [[nodiscard]] std::unique_ptr<BoundPlan> bind(const RankPlan& plan) override;
  [[nodiscard]] std::int64_t state_bytes(const RankPlan& plan) const override;
  [[nodiscard]] std::int64_t dq_accumulator_bytes(const RankPlan& plan) const override;
  [[nodiscard]] void* allocate(std::int64_t bytes) override;
  void free(void* data) noexcept override;
  void copy_from_host(void* target, const void* source, std::int64_t bytes) override;
  void copy_to_host(void* target, const void* source, std::int64_t bytes) override;
  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override;
  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override;
  void prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                        std::int64_t valid_rows) override;
  void finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) override;
  void cast(const TensorView& source, const TensorView& target) override;
  void copy(std::span<const Copy> copies) override;
  void zero(void* data, std::int64_t bytes) override;
  void synchronize() override {}
  [[nodiscard]] std::int64_t tiles_computed() const override { return tiles_; }
  [[nodiscard]] bool rounds_products() const override { return false; }

 private:
  /// Runs task(i, scratch) for i in [0, count), started in ascending order, each thread with `floats` of its own.
  void run_tasks(std::int64_t count, std::int64_t floats, const std::function<void(std::int64_t, float*)>& task);
  void add(const TensorView& source, const TensorView& target);
  /// Runs fn(row) for every row, a few thousand elements per task.
  void for_each_row(std::int64_t rows, std::int64_t elements_per_row, const std::function<void(std::int64_t)>& fn);

  struct FreeMemory {
    void operator()(float* data) const noexcept;
  };
  int num_threads_;
  const Kernels& kernels_;
  std::vector<std::unique_ptr<float, FreeMemory>> scratch_;  // one per thread
  std::int64_t scratch_floats_ = 0;
  std::int64_t tiles_ = 0;
};

}  // namespace marble::cpu

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cuda/bound_plan.hpp"

#include "marble/backend.hpp"
#include "marble/cuda.hpp"

#include <memory>
#include <optional>

namespace marble::cuda {

class CudaBackend final : public Backend {
 public:
  /// Without a stream, on one of its own; without memory, with the device's.
  CudaBackend(int device, std::optional<cudaStream_t> stream, CudaKernels kernels = CudaKernels::best,
              std::unique_ptr<DeviceMemory> memory = nullptr);

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
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
  void synchronize() override;
  [[nodiscard]] std::unique_ptr<Timeline> make_timeline() override;
  [[nodiscard]] std::int64_t tiles_computed() const override { return tiles_computed_; }
  [[nodiscard]] bool rounds_products() const override { return true; }

 private:
  /// Makes the backend's device the calling thread's.
  void select_device() const;

  struct DestroyStream {
    void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
  };

  int device_;
  std::unique_ptr<CUstream_st, DestroyStream> own_stream_;
  cudaStream_t stream_ = nullptr;
  int num_multiprocessors_ = 0;
  int shared_bytes_ = 0;  // that a CTA may have
  int cache_bytes_ = 0;   // of the second level
  bool is_hopper_ = false;
  std::unique_ptr<DeviceMemory> memory_;
  std::optional<Uploads> uploads_;
  DeviceBuffer counter_;  // of the launch in flight; launches on one stream never overlap
  std::int64_t tiles_computed_ = 0;
};

}  // namespace marble::cuda

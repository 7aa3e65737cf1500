// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// One part of a layer by itself: a backend and a transport that leave out what belongs to the other part. The executor
// between them walks the same steps.

#include "backend/decorator.hpp"
#include "transport/decorator.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

namespace marble {

enum class Part { layer, compute, communication };

/// Counts the memory that it hands out, too.
class PartBackend final : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  Part part = Part::layer;
  [[nodiscard]] std::int64_t allocated_bytes() const { return allocated_bytes_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }

  [[nodiscard]] void* allocate(std::int64_t bytes) override {
    void* const data = inner_.allocate(bytes);
    sizes_[data] = bytes;
    allocated_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
    return data;
  }
  void free(void* data) noexcept override {
    if (const auto found = sizes_.find(data); found != sizes_.end()) {
      allocated_bytes_ -= found->second;
      sizes_.erase(found);
    }
    inner_.free(data);
  }

  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override {
    if (computes()) inner_.forward(plan, work, tensors, options);
  }
  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    if (computes()) inner_.backward(plan, work, tensors, options);
  }
  void prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                        std::int64_t valid_rows) override {
    if (computes()) inner_.prepare_backward(out, dout, delta, valid_rows);
  }
  void finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) override {
    if (computes()) inner_.finish_dq(plan, dq_accumulator, dq);
  }
  void cast(const TensorView& source, const TensorView& target) override {
    if (computes()) inner_.cast(source, target);
  }
  void zero(void* data, std::int64_t bytes) override {
    if (computes()) inner_.zero(data, bytes);
  }
  void copy(std::span<const Copy> copies) override {
    if (communicates()) inner_.copy(copies);
  }

 private:
  [[nodiscard]] bool computes() const { return part != Part::communication; }
  [[nodiscard]] bool communicates() const { return part != Part::compute; }

  std::map<void*, std::int64_t> sizes_;
  std::int64_t allocated_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
};

class PartTransport final : public TransportDecorator {
 public:
  using TransportDecorator::TransportDecorator;

  Part part = Part::layer;

  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override {
    return part == Part::compute ? kNothing : inner_.begin(sends, recvs, label);
  }
  void wait(std::int64_t ticket) override {
    if (ticket != kNothing) inner_.wait(ticket);
  }

 private:
  static constexpr std::int64_t kNothing = -1;
};

}  // namespace marble

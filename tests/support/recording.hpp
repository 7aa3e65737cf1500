// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A backend without arithmetic and a transport wrapper that write what they are asked for into one log, so that tests
// can state the executor's order of operations.

#include "base/numeric.hpp"
#include "transport/decorator.hpp"

#include "marble/backend.hpp"
#include "marble/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace marble::test {

using Log = std::vector<std::string>;

/// Calls fn(pointer to the element) for all elements of a view, row by row.
template <typename Fn>
void for_each_element(const TensorView& view, Fn&& fn) {
  for (std::int64_t row = 0; row < view.rows; ++row)
    for (std::int32_t head = 0; head < view.heads; ++head)
      for (std::int64_t d = 0; d < view.dim; ++d)
        fn(static_cast<std::byte*>(view.data) +
           (row * view.row_stride + head * view.head_stride + d) * size_of(view.dtype));
}

/// Host memory. A forward work writes `value` into out and lse; a backward work adds it to dk, dv and the dQ
/// accumulator, which is dense fp32. `value` of work w on rank r: (r + 1) * 10^w.
class RecordingBackend : public Backend {
 public:
  RecordingBackend(Log& log, std::int32_t rank) : log_(log), rank_(rank) {}

  std::chrono::milliseconds work_time{0};
  std::vector<std::int64_t> allocations;
  std::string refusal;  // what check_supported throws, if anything

  [[nodiscard]] std::string_view name() const override { return "recording"; }
  void check_supported(const RankPlan&, DType, const AttentionOptions&) const override {
    require(refusal.empty(), "{}", refusal);
  }
  [[nodiscard]] std::unique_ptr<BoundPlan> bind(const RankPlan&) override { return std::make_unique<BoundPlan>(); }
  [[nodiscard]] std::int64_t state_bytes(const RankPlan&) const override { return 100; }
  [[nodiscard]] std::int64_t dq_accumulator_bytes(const RankPlan& plan) const override {
    return plan.header().query_rows * plan.header().local_heads * plan.header().head_dim * 4;
  }
  [[nodiscard]] void* allocate(std::int64_t bytes) override {
    allocations.push_back(bytes);
    auto* data = new std::byte[static_cast<std::size_t>(bytes)];
    std::memset(data, 0xff, static_cast<std::size_t>(bytes));
    return data;
  }
  void free(void* data) noexcept override { delete[] static_cast<std::byte*>(data); }
  void copy_from_host(void* target, const void* source, std::int64_t bytes) override {
    copy_bytes(target, source, bytes);
  }
  void copy_to_host(void* target, const void* source, std::int64_t bytes) override {
    copy_bytes(target, source, bytes);
  }

  void forward(const BoundPlan&, std::int32_t work, const ForwardTensors& tensors, const AttentionOptions&) override {
    log_.push_back("work " + std::to_string(work));
    std::this_thread::sleep_for(work_time);
    for (const TensorView& view : {tensors.out, tensors.lse})
      for_each_element(view, [&](std::byte* at) { store_element(at, view.dtype, 0, value(work)); });
  }
  void backward(const BoundPlan&, std::int32_t work, const BackwardTensors& tensors, const AttentionOptions&) override {
    log_.push_back("work " + std::to_string(work));
    std::this_thread::sleep_for(work_time);
    for (const TensorView& view : {tensors.dk, tensors.dv}) add(view, value(work));
    add(dense_view(tensors.dq_accumulator, DType::fp32, tensors.q.rows, tensors.q.heads, tensors.q.dim), value(work));
  }
  void prepare_backward(const TensorView&, const TensorView&, const TensorView& delta, std::int64_t rows) override {
    log_.push_back("delta of " + std::to_string(rows) + " rows");
    for_each_element(delta, [&](std::byte* at) { store_element(at, DType::fp32, 0, 1.0F); });
  }
  void finish_dq(const RankPlan&, const void* dq_accumulator, const TensorView& dq) override {
    log_.push_back("finish dq");
    copy_elements(static_cast<const std::byte*>(dq_accumulator), DType::fp32, dq, false);
  }
  void cast(const TensorView& source, const TensorView& target) override {
    log_.push_back("cast");
    std::vector<std::byte> dense(static_cast<std::size_t>(source.bytes()));
    gather(source, dense.data());
    copy_elements(dense.data(), source.dtype, target, false);
  }
  void copy(std::span<const Copy> copies) override {
    const bool adds = std::ranges::any_of(copies, [](const Copy& copy) { return copy.add; });
    log_.push_back((adds ? "add " : "copy ") + std::to_string(copies.size()));
    for (const Copy& copy : copies) {
      std::vector<std::byte> dense(static_cast<std::size_t>(copy.source.bytes()));
      gather(copy.source, dense.data());
      copy_elements(dense.data(), copy.source.dtype, copy.target, copy.add);
    }
  }
  void zero(void* data, std::int64_t bytes) override {
    if (bytes > 0) std::memset(data, 0, static_cast<std::size_t>(bytes));
  }
  void synchronize() override {}
  [[nodiscard]] std::int64_t tiles_computed() const override { return 0; }
  [[nodiscard]] bool rounds_products() const override { return false; }

 private:
  [[nodiscard]] float value(std::int32_t work) const {
    float power = 1.0F;
    for (std::int32_t w = 0; w < work; ++w) power *= 10.0F;
    return static_cast<float>(rank_ + 1) * power;
  }
  static void copy_bytes(void* target, const void* source, std::int64_t bytes) {
    if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
  static void add(const TensorView& view, float amount) {
    for_each_element(
        view, [&](std::byte* at) { store_element(at, view.dtype, 0, load_element(at, view.dtype, 0) + amount); });
  }
  static void gather(const TensorView& source, std::byte* target) {
    for_each_element(source, [&](const std::byte* at) {
      std::memcpy(target, at, static_cast<std::size_t>(size_of(source.dtype)));
      target += size_of(source.dtype);
    });
  }
  static void copy_elements(const std::byte* source, DType type, const TensorView& target, bool add) {
    for_each_element(target, [&](std::byte* at) {
      const float old = add ? load_element(at, target.dtype, 0) : 0.0F;
      store_element(at, target.dtype, 0, old + load_element(source, type, 0));
      source += size_of(type);
    });
  }

  Log& log_;
  std::int32_t rank_;
};

/// Writes begins and waits, with their labels, into the log.
class RecordingTransport final : public TransportDecorator {
 public:
  RecordingTransport(Transport& inner, Log& log) : TransportDecorator(inner), log_(log) {}

  [[nodiscard]] std::string_view name() const override { return "recording"; }
  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override {
    log_.push_back("begin " + std::string(label));
    const std::int64_t ticket = inner_.begin(sends, recvs, label);
    labels_[ticket] = label;
    return ticket;
  }
  void wait(std::int64_t ticket) override {
    log_.push_back("wait " + labels_.at(ticket));
    inner_.wait(ticket);
  }

 private:
  Log& log_;
  std::map<std::int64_t, std::string> labels_;
};

}  // namespace marble::test

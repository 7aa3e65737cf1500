// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/backend_cpu.hpp"

#include "backend/cpu/levels.hpp"
#include "base/parallel.hpp"

#include "marble/error.hpp"

#include <cmath>
#include <cstring>
#include <new>
#include <thread>

namespace marble::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

template <typename T>
T at(std::span<const T> values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

HeadView head_view(const TensorView& tensor, std::int32_t head) {
  return {tensor.block(0, tensor.rows, head, 1).data, tensor.dtype, tensor.row_stride};
}

const CpuBoundPlan& bound_here(const BoundPlan& plan) {
  const auto* bound = dynamic_cast<const CpuBoundPlan*>(&plan);
  require(bound != nullptr, "plan was bound by another backend, not by cpu");
  return *bound;
}

Problem make_problem(const CpuBoundPlan& bound, std::int32_t work, const AttentionOptions& options) {
  const RankPlan& plan = bound.plan();
  const RankPlanHeader& header = plan.header();
  const BoundWork& expansion = bound.work(work);
  Problem problem;
  problem.runs = plan.runs().data();
  problem.key_valid = plan.key_valid().data() + at(plan.works(), work).key_valid.begin;
  problem.intervals = expansion.intervals.data();
  problem.query_tracks = bound.query_tracks().data();
  problem.key_tracks = expansion.key_tracks.data();
  problem.rule = {header.window, header.clamp != 0};
  problem.uses_tracks = header.uses_tracks != 0;
  problem.valid_query_rows = header.valid_query_rows;
  problem.block = header.block;
  problem.head_dim = header.head_dim;
  problem.scale = static_cast<float>(options.softmax_scale);
  problem.softcap = static_cast<float>(options.softcap);
  return problem;
}

std::int64_t num_query_blocks(const RankPlanHeader& header) {
  return num_blocks(header.query_rows, header.block);
}

/// Floats of one query block's and head's dQ.
std::int64_t dq_floats(const RankPlanHeader& header) {
  return std::int64_t{header.block} * header.head_dim;
}

}  // namespace

CpuBackend::CpuBackend(int num_threads, const Kernels& kernels) : num_threads_(num_threads), kernels_(kernels) {
  require(num_threads >= 0, "num_threads {} is negative; 0 means all cores", num_threads);
  if (num_threads_ == 0) num_threads_ = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void CpuBackend::FreeMemory::operator()(float* data) const noexcept {
  ::operator delete(data, kAlignment);
}

void CpuBackend::check_supported(const RankPlan& plan, DType dtype, const AttentionOptions& options) const {
  const RankPlanHeader& header = plan.header();
  require(dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16,
          "dtype {} is not supported by the cpu backend; nearest: fp32", static_cast<int>(dtype));
  const auto nearest = [](std::int32_t value, std::int32_t limit) { return std::clamp(value, 1, limit); };
  require(header.head_dim >= 1 && header.head_dim <= kMaxHeadDim,
          "head_dim {} is not supported by the cpu backend (1 to {}); nearest: {}", header.head_dim, kMaxHeadDim,
          nearest(header.head_dim, kMaxHeadDim));
  require(header.block >= 1 && header.block <= kMaxBlock,
          "block {} is not supported by the cpu backend (1 to {}); nearest: {}", header.block, kMaxBlock,
          nearest(header.block, kMaxBlock));
  require(std::isfinite(options.softmax_scale), "softmax_scale {} is not finite", options.softmax_scale);
  require(std::isfinite(options.softcap) && options.softcap >= 0.0,
          "softcap {} is not supported by the cpu backend; nearest: 0 (none)", options.softcap);
}

std::unique_ptr<BoundPlan> CpuBackend::bind(const RankPlan& plan) {
  return std::make_unique<CpuBoundPlan>(plan);
}

std::int64_t CpuBackend::state_bytes(const RankPlan& plan) const {
  const RankPlanHeader& header = plan.header();
  return num_query_blocks(header) * header.local_heads * state_floats(header.block, header.head_dim) * 4;
}

std::int64_t CpuBackend::dq_accumulator_bytes(const RankPlan& plan) const {
  const RankPlanHeader& header = plan.header();
  return num_query_blocks(header) * header.local_heads * dq_floats(header) * 4;
}

void* CpuBackend::allocate(std::int64_t bytes) {
  return ::operator new(static_cast<std::size_t>(bytes), kAlignment);
}

void CpuBackend::free(void* data) noexcept {
  ::operator delete(data, kAlignment);
}

void CpuBackend::copy_from_host(void* target, const void* source, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

void CpuBackend::copy_to_host(void* target, const void* source, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

void CpuBackend::zero(void* data, std::int64_t bytes) {
  if (bytes > 0) std::memset(data, 0, static_cast<std::size_t>(bytes));
}

void CpuBackend::run_tasks(std::int64_t count, std::int64_t floats,
                           const std::function<void(std::int64_t, float*)>& task) {
  const auto workers = std::min<std::int64_t>(num_threads_, count);
  if (floats > scratch_floats_) scratch_.clear();
  scratch_floats_ = std::max(scratch_floats_, floats);
  while (static_cast<std::int64_t>(scratch_.size()) < workers) {
    const std::int64_t bytes = scratch_floats_ * 4;
    scratch_.emplace_back(static_cast<float*>(allocate(bytes)));
    zero(scratch_.back().get(), bytes);
  }
  std::atomic<std::int64_t> next{0};
  parallel_for(workers, num_threads_, [&](std::int64_t worker) {
    float* scratch = scratch_[static_cast<std::size_t>(worker)].get();
    for (std::int64_t i = next++; i < count; i = next++) task(i, scratch);
  });
}

void CpuBackend::forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
                         const AttentionOptions& options) {
  const CpuBoundPlan& bound = bound_here(plan);
  const RankPlanHeader& header = bound.plan().header();
  const Problem problem = make_problem(bound, work, options);
  const SectionRange& items = at(bound.plan().works(), work).forward_items;
  const std::int64_t state_size = state_floats(header.block, header.head_dim);
  const auto run_task = [&](std::int64_t index, float* scratch) {
    const Item& item = bound.plan().items()[static_cast<std::size_t>(items.begin + index / header.local_heads)];
    const auto head = static_cast<std::int32_t>(index % header.local_heads);
    const std::int32_t key_head = at(bound.plan().head_map(), head);
    ForwardTask task;
    task.item = &item;
    task.q = head_view(tensors.q, head);
    task.k = head_view(tensors.k, key_head);
    task.v = head_view(tensors.v, key_head);
    task.out = head_view(tensors.out, head);
    task.lse = head_view(tensors.lse, head);
    const std::int64_t state_index = std::int64_t{item.block} * header.local_heads + head;
    if (tensors.state != nullptr) task.state = static_cast<float*>(tensors.state) + state_index * state_size;
    kernels_.forward(problem, task, scratch);
  };
  run_tasks(items.size() * header.local_heads, scratch_floats(header.block, header.head_dim), run_task);
  tiles_ += bound.work(work).forward_tiles;
}

void CpuBackend::backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                          const AttentionOptions& options) {
  const CpuBoundPlan& bound = bound_here(plan);
  const RankPlanHeader& header = bound.plan().header();
  const BoundWork& expansion = bound.work(work);
  const Problem problem = make_problem(bound, work, options);
  const SectionRange& items = at(bound.plan().works(), work).backward_items;
  const std::int64_t query_blocks = num_query_blocks(header);
  std::vector<std::atomic<std::int32_t>> done(static_cast<std::size_t>(query_blocks * header.local_heads));
  std::atomic<bool> failed{false};

  std::vector<BackwardHead> heads;
  std::vector<std::size_t> head_begin = {0};
  for (const std::vector<std::int32_t>& group : bound.heads_of()) {
    for (std::int32_t head : group)
      heads.push_back({.q = head_view(tensors.q, head),
                       .dout = head_view(tensors.dout, head),
                       .lse = head_view(tensors.lse, head),
                       .delta = head_view(tensors.delta, head),
                       .dq = static_cast<float*>(tensors.dq_accumulator) + head * dq_floats(header),
                       .dq_stride = header.local_heads * dq_floats(header),
                       .done = done.data() + head * query_blocks});
    head_begin.push_back(heads.size());
  }
  const auto run_task = [&](std::int64_t index, float* scratch) {
    const std::int64_t item = index / header.local_kv_heads;
    const auto key_head = static_cast<std::int32_t>(index % header.local_kv_heads);
    const std::size_t first_head = head_begin[static_cast<std::size_t>(key_head)];
    BackwardTask task;
    task.item = &bound.plan().items()[static_cast<std::size_t>(items.begin + item)];
    task.k = head_view(tensors.k, key_head);
    task.v = head_view(tensors.v, key_head);
    task.dk = head_view(tensors.dk, key_head);
    task.dv = head_view(tensors.dv, key_head);
    task.heads = heads.data() + first_head;
    task.num_heads = static_cast<std::int32_t>(head_begin[static_cast<std::size_t>(key_head) + 1] - first_head);
    task.turns = expansion.turns.data() + expansion.turn_begin[static_cast<std::size_t>(item)];
    task.failed = &failed;
    try {
      kernels_.backward(problem, task, scratch);
    } catch (...) {
      failed = true;  // whoever waits for this task's turn must not wait for ever
      throw;
    }
  };
  run_tasks(items.size() * header.local_kv_heads, scratch_floats(header.block, header.head_dim), run_task);
  tiles_ += expansion.backward_tiles;
}

}  // namespace marble::cpu

namespace marble {

std::unique_ptr<Backend> make_cpu_backend(int num_threads) {
  const std::vector<const cpu::Kernels*> usable = cpu::usable_kernels();
  if (usable.empty())
    throw BackendError("this processor lacks AVX2 or FMA; build with MARBLE_ARCH empty for any x86-64");
  return std::make_unique<cpu::CpuBackend>(num_threads, *usable.front());
}

}  // namespace marble

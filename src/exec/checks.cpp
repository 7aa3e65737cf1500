// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "exec/checks.hpp"

#include "exec/pass.hpp"

#include "marble/error.hpp"

#include <cmath>
#include <cstdint>
#include <string>

namespace marble {
namespace {

enum class Access { read, write };

std::string shape(const TensorView& view) {
  return fmt::format("[{}, {}, {}]", view.rows, view.heads, view.dim);
}

/// True when no two elements share memory: rows lie apart, or heads do.
bool is_disjoint(const TensorView& view) {
  const auto nested = [&](std::int64_t inner_stride, std::int64_t inner, std::int64_t outer_stride,
                          std::int64_t outer) {
    return (inner <= 1 || inner_stride >= view.dim) &&
           (outer <= 1 || outer_stride >= (inner - 1) * inner_stride + view.dim);
  };
  return view.bytes() == 0 || nested(view.head_stride, view.heads, view.row_stride, view.rows) ||
         nested(view.row_stride, view.rows, view.head_stride, view.heads);
}

/// `view` has the shape and dtype of the plan's `like`.
void check_tensor(const RankPlan& plan, DType dtype, std::string_view name, Tensor like, const TensorView& view,
                  Access access) {
  const TensorView expected = buffer_view(plan, index_of(like), dtype, nullptr);
  require(view.rows == expected.rows && view.heads == expected.heads && view.dim == expected.dim, "{}: {} should be {}",
          name, shape(view), shape(expected));
  require(view.dtype == expected.dtype, "{}: {} should be {}", name, to_string(view.dtype), to_string(expected.dtype));
  if (view.bytes() == 0) return;
  require(view.data != nullptr, "{}: no data", name);
  require(reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(size_of(view.dtype)) == 0,
          "{}: its address is not a multiple of its element size {}", name, size_of(view.dtype));
  require(view.row_stride >= 0 && view.head_stride >= 0, "{}: strides [{}, {}] should not be negative", name,
          view.row_stride, view.head_stride);
  require(access == Access::read || is_disjoint(view), "{}: strides [{}, {}] make elements of {} overlap", name,
          view.row_stride, view.head_stride, shape(view));
}

void check_tensor(const RankPlan& plan, DType dtype, Tensor tensor, const TensorView& view, Access access) {
  check_tensor(plan, dtype, to_string(tensor), tensor, view, access);
}

void check_desc(const RankPlan& plan, Tensor tensor, std::int32_t heads, BufferType type, bool scalar) {
  const BufferDesc& desc = plan.buffers()[static_cast<std::size_t>(index_of(tensor))];
  require(desc.rows == plan.header().rows && desc.heads == heads && desc.type == type && (desc.scalar != 0) == scalar,
          "rank plan describes {} as [{}, {}], its header says [{}, {}]", to_string(tensor), desc.rows, desc.heads,
          plan.header().rows, heads);
}

void check_finish(const RankPlan& plan, const Finish& finish) {
  const BufferDesc& target = plan.buffers()[static_cast<std::size_t>(finish.target)];
  const RankPlanHeader& header = plan.header();
  if (finish.source == Finish::kDQ) {
    require(target.rows == header.query_rows && target.heads == header.local_heads && target.scalar == 0,
            "rank plan casts dQ [{}, {}] into buffer {} of [{}, {}]", header.query_rows, header.local_heads,
            finish.target, target.rows, target.heads);
    return;
  }
  const BufferDesc& source = plan.buffers()[static_cast<std::size_t>(finish.source)];
  require(source.rows == target.rows && source.heads == target.heads && source.scalar == target.scalar,
          "rank plan casts buffer {} of [{}, {}] into buffer {} of [{}, {}]", finish.source, source.rows, source.heads,
          finish.target, target.rows, target.heads);
}

void check_work(const RankPlan& plan, const Work& work) {
  for (std::int32_t buffer : {work.dk, work.dv})
    require(!is_callers(buffer) && plan.buffers()[static_cast<std::size_t>(buffer)].type == BufferType::fp32,
            "rank plan sums key gradients in buffer {}, which is not fp32 workspace", buffer);
}

}  // namespace

void check_plan(const RankPlan& plan, const Transport& transport) {
  const RankPlanHeader& header = plan.header();
  require(header.num_ranks == transport.num_ranks() && header.rank == transport.rank(),
          "rank plan is for rank {} of {}, this is rank {} of {}", header.rank, header.num_ranks, transport.rank(),
          transport.num_ranks());
  for (Tensor tensor : {Tensor::q, Tensor::out, Tensor::dout, Tensor::dq})
    check_desc(plan, tensor, header.heads, BufferType::io, false);
  for (Tensor tensor : {Tensor::k, Tensor::v, Tensor::dk, Tensor::dv})
    check_desc(plan, tensor, header.kv_heads, BufferType::io, false);
  for (Tensor tensor : {Tensor::lse, Tensor::delta}) check_desc(plan, tensor, header.heads, BufferType::fp32, true);
  for (const Finish& finish : plan.finishes()) check_finish(plan, finish);
  for (const Step& step : plan.backward_steps())
    if (step.work >= 0) check_work(plan, plan.works()[static_cast<std::size_t>(step.work)]);
}

void check_options(const AttentionOptions& options) {
  require(std::isfinite(options.softmax_scale) && options.softmax_scale > 0,
          "softmax_scale {} should be positive and finite", options.softmax_scale);
  require(std::isfinite(options.softcap) && options.softcap >= 0,
          "softcap {} should be 0 (none) or positive and finite", options.softcap);
}

void check_saved(const void* saved, std::int64_t saved_bytes) {
  require(saved != nullptr || saved_bytes == 0,
          "saved: no memory should be {} bytes, which the plan keeps for backward", saved_bytes);
}

void check_call(const RankPlan& plan, DType dtype, const ForwardCall& call) {
  check_tensor(plan, dtype, Tensor::q, call.q, Access::read);
  check_tensor(plan, dtype, Tensor::k, call.k, Access::read);
  check_tensor(plan, dtype, Tensor::v, call.v, Access::read);
  check_tensor(plan, dtype, Tensor::out, call.out, Access::write);
  check_tensor(plan, dtype, Tensor::lse, call.lse, Access::write);
}

void check_call(const RankPlan& plan, DType dtype, const BackwardCall& call) {
  check_tensor(plan, dtype, Tensor::q, call.q, Access::read);
  check_tensor(plan, dtype, Tensor::k, call.k, Access::read);
  check_tensor(plan, dtype, Tensor::v, call.v, Access::read);
  check_tensor(plan, dtype, Tensor::out, call.out, Access::read);
  check_tensor(plan, dtype, Tensor::lse, call.lse, Access::read);
  check_tensor(plan, dtype, Tensor::dout, call.dout, Access::read);
  check_tensor(plan, dtype, Tensor::dq, call.dq, Access::write);
  check_tensor(plan, dtype, Tensor::dk, call.dk, Access::write);
  check_tensor(plan, dtype, Tensor::dv, call.dv, Access::write);
  if (call.delta_shift.data == nullptr) return;
  check_tensor(plan, dtype, "delta_shift", Tensor::lse, call.delta_shift, Access::read);
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/attention.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

#include "marble/backend.hpp"
#include "marble/error.hpp"
#include "marble/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace marble::python {
namespace {

/// Address, rows, heads, dim, row stride, head stride (in elements) of a tensor whose owner outlives the call.
using TensorTuple = std::tuple<std::uintptr_t, std::int64_t, std::int32_t, std::int32_t, std::int64_t, std::int64_t>;

TensorView to_view(const TensorTuple& tensor, DType dtype) {
  const auto& [address, rows, heads, dim, row_stride, head_stride] = tensor;
  return {.data = reinterpret_cast<void*>(address),
          .dtype = dtype,
          .rows = rows,
          .heads = heads,
          .dim = dim,
          .row_stride = row_stride,
          .head_stride = head_stride};
}

RankPlan to_rank_plan(const ArrayIn<std::uint8_t>& bytes) {
  const std::span<const std::byte> view = std::as_bytes(to_span(bytes));
  return RankPlan::from_bytes({view.begin(), view.end()});
}

/// A rank plan and its bound form, which points at it. Backend and transport outlive it (keep_alive below).
class Attention {
 public:
  Attention(const ArrayIn<std::uint8_t>& rank_plan, const std::string& dtype, double softmax_scale, double softcap,
            bool deterministic, Backend& backend, Transport& transport)
      : plan_(to_rank_plan(rank_plan)), dtype_(parse_dtype(dtype)) {
    const AttentionOptions options{.softmax_scale = softmax_scale, .softcap = softcap, .deterministic = deterministic};
    const nb::gil_scoped_release released;
    bound_.emplace(plan_, dtype_, options, backend, transport);
  }

  void forward(const TensorTuple& q, const TensorTuple& k, const TensorTuple& v, const TensorTuple& out,
               const TensorTuple& lse, std::uintptr_t saved) {
    const nb::gil_scoped_release released;
    attention_forward(*bound_, {.q = io(q),
                                .k = io(k),
                                .v = io(v),
                                .out = io(out),
                                .lse = to_view(lse, DType::fp32),
                                .saved = reinterpret_cast<void*>(saved)});
  }

  void backward(const TensorTuple& q, const TensorTuple& k, const TensorTuple& v, const TensorTuple& out,
                const TensorTuple& lse, const TensorTuple& dout, const TensorTuple& delta_shift, const TensorTuple& dq,
                const TensorTuple& dk, const TensorTuple& dv, std::uintptr_t saved) {
    const nb::gil_scoped_release released;
    BackwardCall call{.q = io(q), .k = io(k), .v = io(v), .out = io(out), .lse = to_view(lse, DType::fp32)};
    call.dout = io(dout);
    call.dq = io(dq);
    call.dk = io(dk);
    call.dv = io(dv);
    call.delta_shift = to_view(delta_shift, DType::fp32);
    call.saved = reinterpret_cast<void*>(saved);
    attention_backward(*bound_, call);
  }

 private:
  [[nodiscard]] TensorView io(const TensorTuple& tensor) const { return to_view(tensor, dtype_); }

  RankPlan plan_;
  DType dtype_;
  std::optional<BoundAttention> bound_;
};

/// Digest of the plan and layer that a rank plan was made from: what a bound plan is cached by.
std::tuple<std::uint64_t, std::uint32_t, std::uint64_t> key_of(const ArrayIn<std::uint8_t>& rank_plan) {
  require(rank_plan.size() >= sizeof(RankPlanHeader), "rank_plan: {} bytes are too few for a rank plan",
          rank_plan.size());
  RankPlanHeader header;
  std::memcpy(&header, rank_plan.data(), sizeof header);
  return {header.plan_digest, header.layer, header.checksum};
}

}  // namespace

void bind_attention(nb::module_& module) {
  nb::class_<Attention>(module, "Attention")
      .def(nb::init<const ArrayIn<std::uint8_t>&, const std::string&, double, double, bool, Backend&, Transport&>(),
           nb::arg("rank_plan"), nb::arg("dtype"), nb::arg("softmax_scale"), nb::arg("softcap"),
           nb::arg("deterministic"), nb::arg("backend"), nb::arg("transport"), nb::keep_alive<1, 7>(),
           nb::keep_alive<1, 8>())
      .def("forward", &Attention::forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"),
           nb::arg("saved"))
      .def("backward", &Attention::backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"),
           nb::arg("dout"), nb::arg("delta_shift"), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"), nb::arg("saved"));
  module.def("rank_plan_key", &key_of, nb::arg("rank_plan"));
  module.def(
      "saved_bytes",
      [](const ArrayIn<std::uint8_t>& rank_plan, const std::string& dtype) {
        return saved_bytes(to_rank_plan(rank_plan), parse_dtype(dtype));
      },
      nb::arg("rank_plan"), nb::arg("dtype"));
}

}  // namespace marble::python

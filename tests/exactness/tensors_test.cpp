// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Neither the strides of the caller's tensors, nor the number of threads, nor a slow network, nor a second call may
// change a bit of the results.

#include "base/numeric.hpp"
#include "exactness/subject.hpp"

#include "marble/attention.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <string>
#include <tuple>
#include <vector>

namespace marble::exactness {
namespace {

enum class Strides { dense, padded, head_major };

/// The nine tensors of a layer on one rank, with NaN wherever nothing was put.
class RankTensors {
 public:
  RankTensors(const Subject& subject, const Plan& plan, std::int32_t rank, Strides strides)
      : dtype_(subject.dtype()), strides_(strides), rows_(plan.rows), positions_(rank_positions(plan, rank)) {
    const Model& model = subject.model();
    const DenseInputs& inputs = subject.inputs();
    backward = {fill(make(model.heads, model.head_dim), inputs.q),
                fill(make(model.kv_heads, model.head_dim), inputs.k),
                fill(make(model.kv_heads, model.head_dim), inputs.v),
                make(model.heads, model.head_dim),
                make(model.heads, 1, DType::fp32),
                fill(make(model.heads, model.head_dim), inputs.dout),
                make(model.heads, model.head_dim),
                make(model.kv_heads, model.head_dim),
                make(model.kv_heads, model.head_dim)};
  }

  [[nodiscard]] ForwardCall forward() const { return {backward.q, backward.k, backward.v, backward.out, backward.lse}; }

  /// All elements of all results, pads included.
  [[nodiscard]] std::vector<float> results() const {
    std::vector<float> values;
    for (const TensorView& view : {backward.out, backward.lse, backward.dq, backward.dk, backward.dv})
      for (std::int64_t row = 0; row < view.rows; ++row)
        for (std::int64_t i = 0; i < std::int64_t{view.heads} * view.dim; ++i)
          values.push_back(load_element(view.data, view.dtype, offset(view, row, i)));
    return values;
  }

  BackwardCall backward;

 private:
  static std::int64_t offset(const TensorView& view, std::int64_t row, std::int64_t i) {
    return row * view.row_stride + i / view.dim * view.head_stride + i % view.dim;
  }

  TensorView make(std::int32_t heads, std::int32_t dim) { return make(heads, dim, dtype_); }
  TensorView make(std::int32_t heads, std::int32_t dim, DType dtype) {
    TensorView view = dense_view(nullptr, dtype, rows_, heads, dim);
    if (strides_ == Strides::padded) {
      view.head_stride = dim + 3;
      view.row_stride = view.head_stride * heads + 5;
    } else if (strides_ == Strides::head_major) {
      view.head_stride = rows_ * dim;
      view.row_stride = dim;
    }
    const std::int64_t elements = view.row_stride * rows_ + view.head_stride * heads + 1;
    auto& memory = memory_.emplace_back(static_cast<std::size_t>(elements * size_of(dtype)), std::byte{0xff});
    // Off by one element: no alignment beyond the element's own.
    view.data = memory.data() + (strides_ == Strides::dense ? 0 : size_of(dtype));
    return view;
  }

  TensorView fill(const TensorView& view, const std::vector<float>& source) const {
    const std::int64_t row_elements = std::int64_t{view.heads} * view.dim;
    for (std::int64_t row = 0; row < std::ssize(positions_); ++row)
      for (std::int64_t i = 0; i < row_elements; ++i)
        store_element(view.data, view.dtype, offset(view, row, i),
                      source[static_cast<std::size_t>(positions_[static_cast<std::size_t>(row)] * row_elements + i)]);
    return view;
  }

  DType dtype_;
  Strides strides_;
  std::int64_t rows_;
  std::vector<std::int64_t> positions_;
  std::list<std::vector<std::byte>> memory_;
};

struct CallOptions {
  Strides strides = Strides::dense;
  int threads = 1;
  std::chrono::milliseconds delay{0};
  int calls = 1;
};

/// Results of all ranks.
std::vector<std::vector<float>> results_of(const Subject& subject, const Plan& plan, const CallOptions& options) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(plan.mesh.num_ranks()));
  run_local_ranks(plan.mesh.num_ranks(), {}, [&](Transport& local) {
    const RankPlan rank_plan = make_rank_plan(plan, local.rank());
    const auto backend = make_cpu_backend(options.threads);
    const auto transport = make_faulty_transport(local, {.delay = options.delay * (1 + local.rank() % 2)}, {});
    BoundAttention attention(rank_plan, subject.dtype(), subject.attention(), *backend, *transport);
    RankTensors tensors(subject, plan, local.rank(), options.strides);
    for (int call = 0; call < options.calls; ++call) {
      attention_forward(attention, tensors.forward());
      attention_backward(attention, tensors.backward);
    }
    results[static_cast<std::size_t>(local.rank())] = tensors.results();
  });
  return results;
}

using Parameters = std::tuple<Mesh, DType>;

class SameBits : public testing::TestWithParam<Parameters> {
 protected:
  SameBits()
      : subject_(pack_of(layout_cases()[8]), {6, 3}, std::get<1>(GetParam())),
        plan_(subject_.plan(std::get<0>(GetParam()), subject_.options())),
        expected_(results_of(subject_, plan_, {})) {}

  void expect_same(const CallOptions& options) const { EXPECT_EQ(results_of(subject_, plan_, options), expected_); }

  Subject subject_;
  Plan plan_;
  std::vector<std::vector<float>> expected_;
};

TEST_P(SameBits, WhateverTheStrides) {
  expect_same({.strides = Strides::padded});
  expect_same({.strides = Strides::head_major});
}
TEST_P(SameBits, WhateverTheThreads) {
  expect_same({.threads = 2});
  expect_same({.threads = 5});
}
TEST_P(SameBits, WhateverTheNetworksPace) {
  expect_same({.delay = std::chrono::milliseconds(3)});
}
TEST_P(SameBits, WhateverTheNumberOfCallsBefore) {
  expect_same({.calls = 3});
}

std::string mesh_name(const testing::TestParamInfo<Parameters>& info) {
  const Mesh& mesh = std::get<0>(info.param);
  return fmt::format("{}x{}_{}", mesh.ring, mesh.ulysses, to_string(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Meshes, SameBits,
                         testing::Combine(testing::Values(Mesh{.ring = 1}, Mesh{.ring = 4},
                                                          Mesh{.ring = 2, .ulysses = 2}, Mesh{.ring = 1, .ulysses = 4}),
                                          testing::Values(DType::bf16, DType::fp32)),
                         mesh_name);

}  // namespace
}  // namespace marble::exactness

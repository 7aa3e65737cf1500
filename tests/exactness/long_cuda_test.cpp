// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Offsets of elements are 64-bit: a pack whose tensors hold more than 2^31 elements, where only the last document is
// not zero. Its results are compared with fp64, and everything else must stay zero.

#include "base/numeric.hpp"
#include "verify/dense_reference.hpp"
#include "verify/errors.hpp"
#include "verify/rank_run.hpp"

#include "marble/attention.hpp"
#include "marble/cuda.hpp"
#include "marble/plan.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace marble::exactness {
namespace {

constexpr std::int64_t kDocument = 4096;
constexpr std::int64_t kDocuments = 129;
constexpr HeadShape kShape{.heads = 32, .kv_heads = 32, .head_dim = 128};
constexpr std::int64_t kRowElements = std::int64_t{kShape.heads} * kShape.head_dim;
static_assert((kDocuments - 1) * kDocument * kRowElements >= std::int64_t{1} << 31);

Layout documents(std::int64_t count) {
  return layout_from_samples(
      std::vector<std::vector<Span>>(static_cast<std::size_t>(count), {{Mode::causal, kDocument}}));
}

/// A bf16 tensor of the whole pack on the GPU.
class PackTensor {
 public:
  explicit PackTensor(Backend& backend)
      : backend_(backend),
        view_(dense_view(nullptr, DType::bf16, kDocuments * kDocument, kShape.heads, kShape.head_dim)) {
    view_.data = backend.allocate(view_.bytes());
    backend.zero(view_.data, view_.bytes());
  }
  ~PackTensor() { backend_.free(view_.data); }
  PackTensor(const PackTensor&) = delete;
  PackTensor& operator=(const PackTensor&) = delete;

  [[nodiscard]] const TensorView& view() const { return view_; }

  void set(std::int64_t document, const std::vector<float>& values) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows_of(document).bytes()));
    for (std::int64_t i = 0; i < std::ssize(values); ++i)
      store_element(bytes.data(), DType::bf16, i, values[static_cast<std::size_t>(i)]);
    backend_.copy_from_host(rows_of(document).data, bytes.data(), std::ssize(bytes));
  }
  [[nodiscard]] std::vector<float> get(std::int64_t document) const {
    const TensorView rows = rows_of(document);
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows.bytes()));
    backend_.copy_to_host(bytes.data(), rows.data, rows.bytes());
    std::vector<float> values(static_cast<std::size_t>(kDocument * kRowElements));
    for (std::int64_t i = 0; i < std::ssize(values); ++i)
      values[static_cast<std::size_t>(i)] = load_element(bytes.data(), DType::bf16, i);
    return values;
  }

 private:
  [[nodiscard]] TensorView rows_of(std::int64_t document) const {
    return view_.block(document * kDocument, kDocument, 0, kShape.heads);
  }

  Backend& backend_;
  TensorView view_;
};

void expect_result(const PackTensor& tensor, const std::vector<double>& truth, const char* what) {
  const double bound =
      kMaxOverRounding * rounding_error<double>(truth, truth, DType::bf16, 1.0) + unit_roundoff(DType::bf16);
  EXPECT_LE(relative_error(tensor.get(kDocuments - 1), truth, 1.0), bound) << what;
  for (const std::int64_t document : {std::int64_t{0}, kDocuments / 2, kDocuments - 2}) {
    const std::vector<float> values = tensor.get(document);
    EXPECT_EQ(std::ranges::count_if(values, [](float x) { return x != 0.0F; }), 0) << what << " of " << document;
  }
}

TEST(LongPack, TensorsMayHoldMoreElementsThanAn32BitOffsetReaches) {
  constexpr std::size_t kNeeded = std::size_t{68} << 30;
  std::size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < kNeeded) GTEST_SKIP() << "needs 68 GiB of free GPU memory; there are " << (free_bytes >> 30);

  const Layout pack = documents(kDocuments);
  const Model model{.heads = kShape.heads, .kv_heads = kShape.kv_heads, .head_dim = kShape.head_dim};
  const DenseInputs inputs = random_inputs(kDocument, kShape, DType::bf16, 1, 2);
  const AttentionOptions options{.softmax_scale = 1.0 / std::sqrt(kShape.head_dim)};
  const DenseResult truth = dense_reference_cuda(documents(1), {}, kShape, inputs,
                                                 {.attention = options, .dtype = DType::bf16, .threads = 2}, 0);
  const Plan plan = make_plan(pack, model, {}, {.canonical = Canonical::sequence});
  const RankPlan rank_plan = make_rank_plan(plan, 0, 0);
  run_local_ranks(1, {}, [&](Transport& transport) {
    const std::unique_ptr<Backend> backend = make_cuda_backend();
    BoundAttention attention(rank_plan, DType::bf16, options, *backend, transport);
    PackTensor q(*backend), k(*backend), v(*backend), dout(*backend), out(*backend), dq(*backend), dk(*backend),
        dv(*backend);
    q.set(kDocuments - 1, inputs.q);
    k.set(kDocuments - 1, inputs.k);
    v.set(kDocuments - 1, inputs.v);
    dout.set(kDocuments - 1, inputs.dout);
    TensorView lse = dense_view(nullptr, DType::fp32, kDocuments * kDocument, kShape.heads, 1);
    lse.data = backend->allocate(lse.bytes());
    attention_forward(attention, {q.view(), k.view(), v.view(), out.view(), lse});
    attention_backward(attention,
                       {q.view(), k.view(), v.view(), out.view(), lse, dout.view(), dq.view(), dk.view(), dv.view()});
    backend->synchronize();
    expect_result(out, truth.out, "out");
    expect_result(dq, truth.dq, "dq");
    expect_result(dk, truth.dk, "dk");
    expect_result(dv, truth.dv, "dv");
    backend->free(lse.data);
  });
}

}  // namespace
}  // namespace marble::exactness

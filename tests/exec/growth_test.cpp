// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// A thousand layers take no more memory than the plan says, and leave none behind.

#include "backend/decorator.hpp"
#include "mask/random_layout.hpp"

#include "marble/attention.hpp"
#include "marble/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <unistd.h>
#include <vector>

namespace marble {
namespace {

/// Counts what is taken and not yet given back.
class CountedBackend final : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;

  std::int64_t held = 0, peak = 0, calls = 0;

  [[nodiscard]] void* allocate(std::int64_t bytes) override {
    void* const data = inner_.allocate(bytes);
    sizes_[data] = bytes;
    ++calls;
    held += bytes;
    peak = std::max(peak, held);
    return data;
  }
  void free(void* data) noexcept override {
    held -= sizes_.at(data);
    sizes_.erase(data);
    inner_.free(data);
  }

 private:
  std::map<void*, std::int64_t> sizes_;
};

const Model kModel{.heads = 4, .kv_heads = 2, .head_dim = 8};

/// A rank's tensors of any plan up to a size.
struct Tensors {
  explicit Tensors(std::int64_t rows) : memory(static_cast<std::size_t>(rows * 4 * 8) * 10, 0.5F) {}

  [[nodiscard]] TensorView view(int index, std::int64_t rows, std::int32_t heads, std::int32_t dim) {
    return dense_view(memory.data() + memory.size() / 10 * static_cast<std::size_t>(index), DType::fp32, rows, heads,
                      dim);
  }
  std::vector<float> memory;
};

void run_layer(BoundAttention& attention, const RankPlan& plan, Tensors& tensors) {
  const std::int64_t rows = plan.header().rows;
  const auto q_like = [&](int index) { return tensors.view(index, rows, kModel.heads, kModel.head_dim); };
  const auto k_like = [&](int index) { return tensors.view(index, rows, kModel.kv_heads, kModel.head_dim); };
  const TensorView lse = tensors.view(4, rows, kModel.heads, 1);
  attention_forward(attention, {q_like(0), k_like(1), k_like(2), q_like(3), lse});
  attention_backward(attention,
                     {q_like(0), k_like(1), k_like(2), q_like(3), lse, q_like(5), q_like(6), k_like(7), k_like(8)});
}

std::int64_t resident_bytes() {
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

/// Every rank's layers; `layers_per_plan` of one layout, then another.
void run_layers(const Mesh& mesh, int layers, int layers_per_plan, std::vector<std::int64_t>& resident) {
  run_local_ranks(mesh.num_ranks(), {}, [&](Transport& transport) {
    const auto inner = make_cpu_backend(1);
    CountedBackend backend(*inner);
    Tensors tensors(2048);
    for (int layer = 0; layer < layers; layer += layers_per_plan) {
      const Layout layout = testing::random_layout(static_cast<std::uint32_t>(layer),
                                                   {.max_samples = 4, .max_spans = 4, .max_length = 60});
      PlanOptions options{.block = 16, .stripe = 16, .threads = 1};
      options.hardware.step_ns = layer % 2 == 0 ? 0 : 25'000;
      const RankPlan plan = make_rank_plan(make_plan(layout, kModel, mesh, options), transport.rank(), 0, 1);
      {
        BoundAttention attention(plan, DType::fp32, {.softmax_scale = 0.25}, backend, transport);
        EXPECT_LE(backend.held, workspace_bytes(plan, DType::fp32, backend));
        const std::int64_t calls = backend.calls;
        for (int i = 0; i < layers_per_plan; ++i) run_layer(attention, plan, tensors);
        EXPECT_EQ(backend.calls, calls) << "a layer takes memory of its own";
      }
      EXPECT_EQ(backend.held, 0);
      if (transport.rank() == 0) resident.push_back(resident_bytes());
    }
  });
}

void expect_no_growth(const std::vector<std::int64_t>& resident) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // whose allocators keep what was freed
#endif
  // The first quarter fills the allocators' caches; a leak of one small layer's buffers would show as tens of MB.
  constexpr std::int64_t kSlack = std::int64_t{4} << 20;
  const auto quarter = static_cast<std::ptrdiff_t>(resident.size() / 4);
  const std::int64_t before = *std::max_element(resident.begin(), resident.begin() + quarter);
  EXPECT_LE(resident.back(), before + kSlack);
}

TEST(Growth, NothingGrowsOverAThousandLayersOfChangingLayouts) {
  std::vector<std::int64_t> resident;
  run_layers({.ring = 3}, 1000, 5, resident);
  expect_no_growth(resident);
}

TEST(Growth, NothingGrowsOverAThousandLayersWithUlysses) {
  std::vector<std::int64_t> resident;
  run_layers({.ring = 2, .ulysses = 2}, 1000, 10, resident);
  expect_no_growth(resident);
}

}  // namespace
}  // namespace marble

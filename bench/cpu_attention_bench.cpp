// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// One layer on one rank with the CPU backend: dense causal attention, the case every library has, and a packed
// multimodal layout. `--threads=N` (default: all cores) precedes Google Benchmark's own flags.

#include "marble/attention.hpp"
#include "marble/generators.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace marble {
namespace {

constexpr std::int32_t kHeads = 8;
constexpr std::int32_t kHeadDim = 128;
int g_threads = 0;

enum class Pass { forward, forward_backward };

/// Tensors of one call, random inputs included.
class Tensors {
 public:
  Tensors(Backend& backend, DType dtype, std::int64_t rows) : backend_(backend), dtype_(dtype), rows_(rows) {
    forward_ = {random(), random(), random(), random(), make(DType::fp32, 1)};
    backward_ = {forward_.q, forward_.k, forward_.v, forward_.out, forward_.lse,
                 random(),   random(),   random(),   random()};
  }
  Tensors(const Tensors&) = delete;
  ~Tensors() {
    for (void* data : memory_) backend_.free(data);
  }

  [[nodiscard]] const ForwardCall& forward() const { return forward_; }
  [[nodiscard]] const BackwardCall& backward() const { return backward_; }

 private:
  TensorView make(DType dtype, std::int32_t dim) {
    memory_.push_back(backend_.allocate(rows_ * kHeads * dim * size_of(dtype)));
    return dense_view(memory_.back(), dtype, rows_, kHeads, dim);
  }

  TensorView random() {
    const TensorView wide = make(DType::fp32, kHeadDim);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows_ * kHeads * kHeadDim; ++i) static_cast<float*>(wide.data)[i] = normal(random_);
    if (dtype_ == DType::fp32) return wide;
    const TensorView narrow = make(dtype_, kHeadDim);
    backend_.cast(wide, narrow);
    return narrow;
  }

  Backend& backend_;
  DType dtype_;
  std::int64_t rows_;
  std::mt19937 random_{1};
  std::vector<void*> memory_;
  ForwardCall forward_;
  BackwardCall backward_;
};

void run(benchmark::State& state, const Layout& layout, DType dtype, Pass pass) {
  const Model model{.heads = kHeads, .kv_heads = kHeads, .head_dim = kHeadDim};
  const Plan plan = make_plan(layout, model, {});
  const RankPlan rank_plan = make_rank_plan(plan, 0);
  const std::unique_ptr<Backend> backend = make_cpu_backend(g_threads);
  const Tensors tensors(*backend, dtype, plan.rows);
  const AttentionOptions options{.softmax_scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim))};
  run_local_ranks(1, {}, [&](Transport& transport) {
    BoundAttention attention(rank_plan, dtype, options, *backend, transport);
    const auto call = [&] {
      attention_forward(attention, tensors.forward());
      if (pass == Pass::forward_backward) attention_backward(attention, tensors.backward());
    };
    call();  // the first call touches fresh memory
    for (auto _ : state) call();
  });
  const auto pairs = static_cast<double>(count_legal_pairs(layout));
  const double products = pass == Pass::forward ? 2.0 : 7.0;  // matrix products of d multiplications a pair
  state.counters["tflops"] =
      benchmark::Counter(2e-12 * products * kHeads * kHeadDim * pairs, benchmark::Counter::kIsIterationInvariantRate);
}

void dense_causal(benchmark::State& state, DType dtype, Pass pass) {
  const std::int64_t cu_seqlens[] = {0, 4096};
  run(state, layout_from_cu_seqlens(cu_seqlens), dtype, pass);
}

void packed(benchmark::State& state, std::string_view generator_name, DType dtype, Pass pass) {
  run(state, generate(generator_name, 8192, 0), dtype, pass);
}

BENCHMARK_CAPTURE(dense_causal, fp32_forward, DType::fp32, Pass::forward)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(dense_causal, fp32_forward_backward, DType::fp32, Pass::forward_backward)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(dense_causal, bf16_forward, DType::bf16, Pass::forward)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(dense_causal, bf16_forward_backward, DType::bf16, Pass::forward_backward)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(packed, molmo2_video_bf16_forward_backward, "molmo2-video", DType::bf16, Pass::forward_backward)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

/// Takes `--threads=N` out of the arguments.
void take_threads(int& argc, char** argv) {
  constexpr std::string_view kFlag = "--threads=";
  if (argc < 2 || !std::string_view(argv[1]).starts_with(kFlag)) return;
  g_threads = std::atoi(argv[1] + kFlag.size());
  for (int i = 1; i + 1 < argc; ++i) argv[i] = argv[i + 1];
  --argc;
}

}  // namespace
}  // namespace marble

int main(int argc, char** argv) {
  marble::take_threads(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

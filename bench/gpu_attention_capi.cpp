// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// What bench/gpu_attention.py calls through ctypes: one rank's plan for a layout, and its kernels on given pointers.

#include "marble/cuda.hpp"
#include "marble/error.hpp"
#include "marble/plan.hpp"
#include "marble/verify.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace marble {
namespace {

struct Problem {
  Plan plan;
  RankPlan rank_plan;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<BoundPlan> bound;
  void* state = nullptr;
  void* delta = nullptr;
  void* dq_accumulator = nullptr;
  DType dtype = DType::bf16;
  AttentionOptions options;

  ~Problem() {
    for (void* memory : {state, delta, dq_accumulator})
      if (memory != nullptr) backend->free(memory);
  }
};

std::string& last_error() {
  static std::string message;
  return message;
}

Layout layout_of_spans(const std::int32_t* modes, const std::int64_t* lengths, const std::int64_t* sample_begin,
                       std::int64_t num_samples) {
  Layout layout;
  for (std::int64_t s = 0; s < num_samples; ++s) {
    std::vector<Span> sample;
    for (std::int64_t i = sample_begin[s]; i < sample_begin[s + 1]; ++i)
      sample.push_back({static_cast<Mode>(modes[i]), lengths[i]});
    layout.add_sample(sample);
  }
  return layout;
}

Model one_layer(std::int64_t window, std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim) {
  Model model;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.head_dim = head_dim;
  model.layers = {LayerKind{{window, false}, 1}};
  return model;
}

std::unique_ptr<Problem> open(const Layout& layout, const Model& model, CudaKernels kernels, DType dtype,
                              const AttentionOptions& options) {
  auto problem = std::make_unique<Problem>();
  problem->plan = make_plan(layout, model, Mesh{});
  problem->rank_plan = make_rank_plan(problem->plan, 0);
  problem->dtype = dtype;
  problem->options = options;
  problem->backend = make_cuda_backend(0, nullptr, nullptr, kernels);
  problem->backend->check_supported(problem->rank_plan, dtype, options);
  problem->bound = problem->backend->bind(problem->rank_plan);
  if (const std::int64_t bytes = problem->backend->state_bytes(problem->rank_plan); bytes > 0)
    problem->state = problem->backend->allocate(bytes);
  return problem;
}

void forward(Problem& problem, void* q, void* k, void* v, void* out, void* lse) {
  const RankPlanHeader& header = problem.rank_plan.header();
  const auto view = [&](void* data, std::int32_t heads) {
    return dense_view(data, problem.dtype, header.rows, heads, header.head_dim);
  };
  const ForwardTensors tensors = {view(q, header.heads),
                                  view(k, header.kv_heads),
                                  view(v, header.kv_heads),
                                  view(out, header.heads),
                                  dense_view(lse, DType::fp32, header.rows, header.heads, 1),
                                  problem.state};
  for (const Step& step : problem.rank_plan.forward_steps())
    if (step.work >= 0) problem.backend->forward(*problem.bound, step.work, tensors, problem.options);
}

/// What a training step pays for a layer: delta, zeroed sums, the works, and dQ's cast.
void backward(Problem& problem, bool deterministic, void* q, void* k, void* v, void* out, void* dout, void* lse,
              void* dq, void* dk, void* dv) {
  Backend& backend = *problem.backend;
  AttentionOptions options = problem.options;
  options.deterministic = deterministic;
  const RankPlanHeader& header = problem.rank_plan.header();
  const auto view = [&](void* data, DType dtype, std::int32_t heads, std::int32_t dim) {
    return dense_view(data, dtype, header.rows, heads, dim);
  };
  const auto io = [&](void* data, std::int32_t heads) { return view(data, problem.dtype, heads, header.head_dim); };
  const std::int64_t dq_bytes = backend.dq_accumulator_bytes(problem.rank_plan);
  if (problem.delta == nullptr) {
    problem.delta = backend.allocate(view(nullptr, DType::fp32, header.heads, 1).bytes());
    problem.dq_accumulator = backend.allocate(dq_bytes);
  }
  const BackwardTensors tensors = {io(q, header.heads),
                                   io(k, header.kv_heads),
                                   io(v, header.kv_heads),
                                   io(dout, header.heads),
                                   view(lse, DType::fp32, header.heads, 1),
                                   view(problem.delta, DType::fp32, header.heads, 1),
                                   view(dk, DType::fp32, header.kv_heads, header.head_dim),
                                   view(dv, DType::fp32, header.kv_heads, header.head_dim),
                                   problem.dq_accumulator};
  backend.prepare_backward(io(out, header.heads), tensors.dout, tensors.delta, header.valid_rows);
  backend.zero(problem.dq_accumulator, dq_bytes);
  backend.zero(dk, tensors.dk.bytes());
  backend.zero(dv, tensors.dv.bytes());
  for (const Step& step : problem.rank_plan.backward_steps())
    if (step.work >= 0) backend.backward(*problem.bound, step.work, tensors, options);
  backend.finish_dq(problem.rank_plan, problem.dq_accumulator, io(dq, header.heads));
}

}  // namespace
}  // namespace marble

extern "C" {

const char* marble_bench_error() {
  return marble::last_error().c_str();
}

/// Spans as mode names' indices (marble::Mode) and lengths; sample s is spans [sample_begin[s], sample_begin[s + 1]).
/// `plain`: with the kernels that any GPU has, not the device's best. Null on failure (marble_bench_error).
void* marble_bench_open(const std::int32_t* modes, const std::int64_t* lengths, const std::int64_t* sample_begin,
                        std::int64_t num_samples, std::int64_t window, std::int32_t heads, std::int32_t kv_heads,
                        std::int32_t head_dim, double softmax_scale, std::int32_t plain) {
  try {
    return marble::open(marble::layout_of_spans(modes, lengths, sample_begin, num_samples),
                        marble::one_layer(window, heads, kv_heads, head_dim),
                        plain != 0 ? marble::CudaKernels::plain : marble::CudaKernels::best, marble::DType::bf16,
                        {.softmax_scale = softmax_scale})
        .release();
  } catch (const std::exception& error) {
    marble::last_error() = error.what();
    return nullptr;
  }
}

/// Relative errors of out, dq, dk and dv against dense fp64: of `ring` ranks that share this GPU and carry state from
/// step to step, then of one rank in one call. 0, or 1 on failure (marble_bench_error).
int marble_bench_ring_errors(const std::int32_t* modes, const std::int64_t* lengths, const std::int64_t* sample_begin,
                             std::int64_t num_samples, std::int64_t window, std::int32_t heads, std::int32_t kv_heads,
                             std::int32_t head_dim, std::int32_t ring, double* errors) {
  try {
    marble::VerifyOptions options;
    options.dtype = marble::DType::bf16;
    options.plan.strategy = marble::Strategy::ring;
    options.reference_gpu = 0;
    options.backend = [](int threads) { return marble::make_backend("cuda", 0, threads); };
    const marble::VerifyResult result =
        marble::verify_local(marble::layout_of_spans(modes, lengths, sample_begin, num_samples),
                             marble::one_layer(window, heads, kv_heads, head_dim), marble::Mesh{.ring = ring}, options);
    for (const marble::VerifyError& error : {result.out, result.dq, result.dk, result.dv}) {
      errors[0] = error.error;
      errors[4] = error.single_rank_error;
      ++errors;
    }
    return 0;
  } catch (const std::exception& error) {
    marble::last_error() = error.what();
    return 1;
  }
}

void marble_bench_close(void* problem) {
  delete static_cast<marble::Problem*>(problem);
}

/// Rows of every tensor, pads included.
std::int64_t marble_bench_rows(void* problem) {
  return static_cast<marble::Problem*>(problem)->rank_plan.header().rows;
}

/// Visible block pairs of one head.
std::int64_t marble_bench_tiles(void* problem) {
  std::int64_t tiles = 0;
  for (const marble::Work& work : static_cast<marble::Problem*>(problem)->rank_plan.works()) tiles += work.tiles;
  return tiles;
}

/// The token that each valid row holds.
void marble_bench_positions(void* problem, std::int64_t* positions) {
  const auto rows = marble::rank_positions(static_cast<marble::Problem*>(problem)->plan, 0);
  std::copy(rows.begin(), rows.end(), positions);
}

/// Asks for a forward pass on the default stream; 0, or 1 on failure (marble_bench_error).
int marble_bench_forward(void* problem, void* q, void* k, void* v, void* out, void* lse) {
  try {
    marble::forward(*static_cast<marble::Problem*>(problem), q, k, v, out, lse);
    return 0;
  } catch (const std::exception& error) {
    marble::last_error() = error.what();
    return 1;
  }
}

/// The same for a backward pass; dk and dv are fp32 and overwritten.
int marble_bench_backward(void* problem, std::int32_t deterministic, void* q, void* k, void* v, void* out, void* dout,
                          void* lse, void* dq, void* dk, void* dv) {
  try {
    marble::backward(*static_cast<marble::Problem*>(problem), deterministic != 0, q, k, v, out, dout, lse, dq, dk, dv);
    return 0;
  } catch (const std::exception& error) {
    marble::last_error() = error.what();
    return 1;
  }
}
}

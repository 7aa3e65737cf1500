// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/rank_run.hpp"

#include "backend/decorator.hpp"
#include "backend/owned_tensor.hpp"
#include "base/numeric.hpp"
#include "base/parallel.hpp"
#include "verify/random_tensor.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace marble {
namespace {

constexpr std::byte kPoison{0xff};  // NaN in every dtype

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// Fills all memory with NaN when it is taken, and reports each work.
class WatchedBackend final : public BackendDecorator {
 public:
  WatchedBackend(Backend& inner, const VerifyProgress& progress, std::int64_t num_works)
      : BackendDecorator(inner), progress_(progress), num_works_(num_works) {}

  [[nodiscard]] void* allocate(std::int64_t bytes) override {
    void* const data = inner_.allocate(bytes);
    for (std::int64_t begin = 0; begin < bytes; begin += std::ssize(poison_))
      inner_.copy_from_host(static_cast<std::byte*>(data) + begin, poison_.data(),
                            std::min<std::int64_t>(bytes - begin, std::ssize(poison_)));
    return data;
  }
  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override {
    inner_.forward(plan, work, tensors, options);
    report("forward");
  }
  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    inner_.backward(plan, work, tensors, options);
    report("backward");
  }

 private:
  void report(std::string_view label) {
    ++done_;
    if (progress_) progress_(static_cast<double>(done_) / static_cast<double>(num_works_), label);
  }

  static constexpr std::size_t kPoisonPart = std::size_t{4} << 20;  // a copy as large as a buffer is mostly page faults
  const std::vector<std::byte> poison_ = std::vector<std::byte>(kPoisonPart, kPoison);
  const VerifyProgress& progress_;
  std::int64_t num_works_;
  std::int64_t done_ = 0;
};

/// One of this rank's tensors: memory of the backend, and its host image while it is filled or read.
class RankTensor : public OwnedTensor {
 public:
  using OwnedTensor::OwnedTensor;

  [[nodiscard]] std::int64_t row_elements() const { return std::int64_t{view_.heads} * view_.dim; }

  /// Row i from row positions[i] of `source`; the pads stay NaN.
  void fill(std::span<const float> source, std::span<const std::int64_t> positions, int threads) {
    std::vector<std::byte> host(at(view_.bytes()), kPoison);
    parallel_for(std::ssize(positions), threads, [&](std::int64_t row) {
      for (std::int64_t e = 0; e < row_elements(); ++e)
        store_element(host.data(), view_.dtype, row * row_elements() + e,
                      source[at(positions[at(row)] * row_elements() + e)]);
    });
    backend_.copy_from_host(view_.data, host.data(), view_.bytes());
  }

  /// All rows, widened.
  [[nodiscard]] std::vector<float> read(int threads) const {
    std::vector<std::byte> host(at(view_.bytes()));
    backend_.copy_to_host(host.data(), view_.data, view_.bytes());
    std::vector<float> values(at(view_.rows * row_elements()));
    parallel_for(view_.rows, threads, [&](std::int64_t row) {
      for (std::int64_t i = row * row_elements(); i < (row + 1) * row_elements(); ++i)
        values[at(i)] = load_element(host.data(), view_.dtype, i);
    });
    return values;
  }
};

/// What one rank has to show: its rows of out, lse, dq, dk, dv, and counts.
struct RankResult {
  static constexpr int kNumTensorsShown = 5;
  std::array<std::vector<float>, kNumTensorsShown> tensors;
  enum Count { tiles, backward_tiles, planned_tiles, planned_backward_tiles, pads_written, kNumCounts };
  std::array<std::int64_t, kNumCounts> counts{};
  enum Tokens { received, planned_received, kNumTokens };  // keys of this rank's heads
  std::array<double, kNumTokens> tokens{};
  bool rounds_products = false;  // known to all ranks, so it is not sent
};

/// Bytes of keys and values that the forward pass fetches from other ring ranks, and bytes of everything else that it
/// receives: what moves within a Ulysses group.
struct PlannedBytes {
  std::int64_t keys = 0;
  std::int64_t others = 0;
};

PlannedBytes planned_bytes(const RankPlan& plan, std::int32_t ulysses, DType dtype) {
  std::vector<bool> is_key(plan.buffers().size());
  for (const Work& work : plan.works()) is_key[at(work.k)] = is_key[at(work.v)] = true;
  PlannedBytes bytes;
  for (const Step& step : plan.forward_steps())
    for (std::int32_t index : {step.fetch, step.give_back}) {
      if (index < 0) continue;
      const SectionRange& recvs = plan.exchanges()[at(index)].recvs;
      for (std::int64_t t = recvs.begin; t < recvs.end; ++t) {
        const Transfer& transfer = plan.transfers()[at(t)];
        if (transfer.peer == plan.header().rank) continue;
        const BufferDesc& desc = plan.buffers()[at(transfer.buffer)];
        const std::int64_t size = transfer.rows * transfer.heads * (desc.scalar != 0 ? 1 : plan.header().head_dim) *
                                  (desc.type == BufferType::io ? size_of(dtype) : 4);
        const bool fetched = is_key[at(transfer.buffer)] && transfer.peer / ulysses != plan.header().rank / ulysses;
        (fetched ? bytes.keys : bytes.others) += size;
      }
    }
  return bytes;
}

/// Tiles that the works of a pass list.
std::int64_t planned_tiles(const RankPlan& plan, std::span<const Step> steps) {
  std::int64_t tiles = 0;
  for (const Step& step : steps)
    if (step.work >= 0) tiles += plan.works()[at(step.work)].tiles;
  return tiles;
}

std::int64_t num_works(const RankPlan& plan, bool forward_only) {
  std::int64_t count = 0;
  for (const Step& step : plan.forward_steps()) count += step.work >= 0 ? 1 : 0;
  if (!forward_only)
    for (const Step& step : plan.backward_steps()) count += step.work >= 0 ? 1 : 0;
  return std::max<std::int64_t>(count, 1);
}

/// Runs this rank's part of the two passes.
class RankRun {
 public:
  RankRun(const RunRequest& request, Transport& transport)
      : request_(request),
        transport_(transport),
        rank_plan_(make_rank_plan(request.plan, transport.rank(), request.options.layer, request.threads_per_rank)),
        positions_(rank_positions(request.plan, transport.rank())),
        inner_(request.options.backend(request.threads_per_rank)),
        backend_(*inner_, transport.rank() == 0 ? request.progress : silent_,
                 num_works(rank_plan_, request.options.forward_only)) {
    if (!request.trace) return;
    trace_.emplace(backend_, transport);
    trace_->record(true);
  }

  RankResult run() {
    // The transport may move host bytes only, and tensors are the backend's memory.
    transport_.set_memory_access(
        {[this](void* to, const void* from, std::int64_t bytes) { backend_.copy_to_host(to, from, bytes); },
         [this](void* to, const void* from, std::int64_t bytes) { backend_.copy_from_host(to, from, bytes); }});
    passes();
    transport_.set_memory_access({});
    if (trace_) {
      const std::string events = trace_->gather();
      if (transport_.rank() == 0) request_.trace(events);
    }
    result_.rounds_products = backend_.rounds_products();
    return std::move(result_);
  }

 private:
  void passes() {
    const Model& model = request_.plan.model;
    const std::int64_t rows = request_.plan.rows;
    const DType dtype = request_.options.dtype;
    const auto tensor = [&](std::int32_t heads) { return RankTensor(backend_, dtype, rows, heads, model.head_dim); };
    RankTensor q = tensor(model.heads), k = tensor(model.kv_heads), v = tensor(model.kv_heads);
    RankTensor out = tensor(model.heads), lse(backend_, DType::fp32, rows, model.heads, 1);
    const int threads = request_.threads_per_rank;
    q.fill(request_.inputs.q, positions_, threads);
    k.fill(request_.inputs.k, positions_, threads);
    v.fill(request_.inputs.v, positions_, threads);
    BoundAttention attention(rank_plan_, dtype, request_.options.attention, trace_ ? trace_->backend() : backend_,
                             trace_ ? trace_->transport() : transport_);
    if (trace_) attention.observe(&trace_->observer());
    const std::int64_t bytes_before = transport_.bytes_received();
    const std::int64_t tiles_before = backend_.tiles_computed();
    const RankTensor saved(backend_, DType::fp32, saved_bytes(rank_plan_, dtype) / 4, 1, 1);
    attention_forward(attention, {q.view(), k.view(), v.view(), out.view(), lse.view(), saved.view().data});
    backend_.synchronize();
    count_forward(transport_.bytes_received() - bytes_before, backend_.tiles_computed() - tiles_before);
    show(0, out, 0.0F);
    show(1, lse, -std::numeric_limits<float>::infinity());
    if (request_.options.forward_only) return;

    RankTensor dout = tensor(model.heads), dq = tensor(model.heads), dk = tensor(model.kv_heads),
               dv = tensor(model.kv_heads);
    dout.fill(request_.inputs.dout, positions_, threads);
    const std::int64_t forward_tiles = backend_.tiles_computed();
    attention_backward(attention, {q.view(),
                                   k.view(),
                                   v.view(),
                                   out.view(),
                                   lse.view(),
                                   dout.view(),
                                   dq.view(),
                                   dk.view(),
                                   dv.view(),
                                   {},
                                   saved.view().data});
    backend_.synchronize();
    result_.counts[RankResult::backward_tiles] = backend_.tiles_computed() - forward_tiles;
    result_.counts[RankResult::planned_backward_tiles] = planned_tiles(rank_plan_, rank_plan_.backward_steps());
    show(2, dq, 0.0F);
    show(3, dk, 0.0F);
    show(4, dv, 0.0F);
  }

  void count_forward(std::int64_t received_bytes, std::int64_t tiles) {
    const DType dtype = request_.options.dtype;
    const PlannedBytes planned = planned_bytes(rank_plan_, request_.plan.mesh.ulysses, dtype);
    const RankPlanHeader& header = rank_plan_.header();
    const auto token_bytes =
        static_cast<double>(2 * std::int64_t{header.local_kv_heads} * header.head_dim * size_of(dtype));
    result_.tokens[RankResult::received] = static_cast<double>(received_bytes - planned.others) / token_bytes;
    result_.tokens[RankResult::planned_received] = static_cast<double>(planned.keys) / token_bytes;
    result_.counts[RankResult::tiles] = tiles;
    result_.counts[RankResult::planned_tiles] = planned_tiles(rank_plan_, rank_plan_.forward_steps());
  }

  /// Keeps the valid rows of a tensor, and checks that its pads are `pad`.
  void show(std::size_t index, const RankTensor& tensor, float pad) {
    std::vector<float> values = tensor.read(request_.threads_per_rank);
    const std::size_t valid = positions_.size() * at(tensor.row_elements());
    const std::span<const float> pads = std::span(values).subspan(valid);
    result_.counts[RankResult::pads_written] += std::ranges::count_if(pads, [&](float x) { return x != pad; });
    values.resize(valid);
    result_.tensors[index] = std::move(values);
  }

  const RunRequest& request_;
  Transport& transport_;
  VerifyProgress silent_;
  RankPlan rank_plan_;
  std::vector<std::int64_t> positions_;
  std::unique_ptr<Backend> inner_;
  WatchedBackend backend_;
  std::optional<RankTrace> trace_;
  RankResult result_;
};

/// Elements per token of the five tensors shown.
std::array<std::int64_t, RankResult::kNumTensorsShown> elements_per_token(const Model& model, bool forward_only) {
  const std::int64_t query = std::int64_t{model.heads} * model.head_dim;
  const std::int64_t key = std::int64_t{model.kv_heads} * model.head_dim;
  if (forward_only) return {query, model.heads, 0, 0, 0};
  return {query, model.heads, query, key, key};
}

/// Messages over all parts of a rank's result, in one order on both sides.
std::vector<Message> messages(std::int32_t peer, RankResult& result) {
  std::vector<Message> list;
  const auto add = [&](void* data, std::size_t bytes) {
    if (bytes > 0) list.push_back({peer, data, static_cast<std::int64_t>(bytes)});
  };
  for (auto& tensor : result.tensors) add(tensor.data(), tensor.size() * sizeof(float));
  add(result.counts.data(), sizeof(result.counts));
  add(result.tokens.data(), sizeof(result.tokens));
  return list;
}

class Gathering {
 public:
  explicit Gathering(const RunRequest& request)
      : plan_(request.plan),
        threads_(request.threads_per_rank),
        elements_(elements_per_token(plan_.model, request.options.forward_only)) {
    const std::int64_t tokens = plan_.layout.num_tokens();
    for (std::size_t t = 0; t < targets_.size(); ++t)
      targets_[t]->assign(at(tokens * elements_[t]), std::numeric_limits<float>::quiet_NaN());
  }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  /// Room for what `rank` has to show.
  [[nodiscard]] RankResult expect(std::int32_t rank) const {
    RankResult result;
    const std::size_t tokens = rank_positions(plan_, rank).size();
    for (std::size_t t = 0; t < targets_.size(); ++t) result.tensors[t].resize(tokens * at(elements_[t]));
    return result;
  }

  void add(std::int32_t rank, const RankResult& result) {
    const std::vector<std::int64_t> positions = rank_positions(plan_, rank);
    for (std::size_t t = 0; t < targets_.size(); ++t)
      parallel_for(std::ssize(positions), threads_, [&](std::int64_t row) {
        std::copy_n(result.tensors[t].begin() + row * elements_[t], elements_[t],
                    targets_[t]->begin() + positions[at(row)] * elements_[t]);
      });
    sum_.ran.tiles += result.counts[RankResult::tiles];
    sum_.ran.backward_tiles += result.counts[RankResult::backward_tiles];
    sum_.ran.received_tokens += result.tokens[RankResult::received];
    sum_.rank_plans.tiles += result.counts[RankResult::planned_tiles];
    sum_.rank_plans.backward_tiles += result.counts[RankResult::planned_backward_tiles];
    sum_.rank_plans.received_tokens += result.tokens[RankResult::planned_received];
    sum_.pads_written += result.counts[RankResult::pads_written];
  }

  RunResult take() {
    // The ranks of a Ulysses group share a token's heads, and together count it once.
    sum_.ran.received_tokens /= plan_.mesh.ulysses;
    sum_.rank_plans.received_tokens /= plan_.mesh.ulysses;
    return std::move(sum_);
  }

 private:
  const Plan& plan_;
  int threads_;
  std::array<std::int64_t, RankResult::kNumTensorsShown> elements_;
  RunResult sum_;
  std::array<std::vector<float>*, RankResult::kNumTensorsShown> targets_ = {&sum_.out, &sum_.lse, &sum_.dq, &sum_.dk,
                                                                            &sum_.dv};
};

}  // namespace

DenseInputs random_inputs(std::int64_t tokens, const HeadShape& shape, DType dtype, std::uint64_t seed, int threads) {
  const auto make = [&](std::uint64_t stream, std::int32_t heads) {
    const std::size_t row = at(std::int64_t{heads} * shape.head_dim);
    std::vector<float> tensor(at(tokens) * row);
    parallel_for(tokens, threads, [&](std::int64_t token) {
      for (std::size_t i = at(token) * row; i < at(token + 1) * row; ++i) {
        std::uint32_t exact = 0;
        store_element(&exact, dtype, 0, random_normal(seed, stream, i));
        tensor[i] = load_element(&exact, dtype, 0);
      }
    });
    return tensor;
  };
  return {make(0, shape.heads), make(1, shape.kv_heads), make(2, shape.kv_heads), make(3, shape.heads)};
}

VerifyCounts planned_counts(const Plan& plan, const VerifyOptions& options) {
  VerifyCounts counts;
  for (const PairDemand& demand : plan.layers[at(options.layer)].demand)
    counts.tiles += plan.mesh.ulysses * (demand.full_tiles + demand.partial_tiles);
  counts.backward_tiles = options.forward_only ? 0 : counts.tiles;
  counts.received_tokens = static_cast<double>(exchange_tokens(plan, options.layer).kv);
  return counts;
}

std::optional<RunResult> run_rank(const RunRequest& request, Transport& transport) {
  RankResult own = RankRun(request, transport).run();
  if (transport.rank() != 0) {
    transport.wait(transport.begin(messages(0, own), {}, "verification results"));
    return std::nullopt;
  }
  Gathering gathering(request);
  gathering.add(0, own);
  for (std::int32_t rank = 1; rank < transport.num_ranks(); ++rank) {
    RankResult other = gathering.expect(rank);
    transport.wait(transport.begin({}, messages(rank, other), "verification results"));
    gathering.add(rank, other);
  }
  RunResult result = gathering.take();
  result.rounds_products = own.rounds_products;
  return result;
}

RunResult run_ranks(const RunRequest& request) {
  std::optional<RunResult> result;
  run_local_ranks(request.plan.mesh.num_ranks(), request.options.transport, [&](Transport& transport) {
    std::optional<RunResult> gathered = run_rank(request, transport);
    if (gathered) result = std::move(gathered);
  });
  return std::move(*result);
}

}  // namespace marble

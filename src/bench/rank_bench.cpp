// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_bench.hpp"

#include "backend/owned_tensor.hpp"
#include "base/numeric.hpp"
#include "bench/parts.hpp"
#include "verify/random_tensor.hpp"

#include "marble/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace marble {
namespace {

/// A sample shorter than this repeats its pass, so that launches and the clock's grain do not count.
constexpr double kSampleMs = 5.0;
constexpr double kMaxBatch = 64.0;

/// A normal-looking pattern that fills tensors from offsets of its own in every stretch.
class Noise {
 public:
  Noise(DType dtype, std::uint64_t seed) : seed_(seed), bytes_(static_cast<std::size_t>(kElements * size_of(dtype))) {
    for (std::int64_t i = 0; i < kElements; ++i)
      store_element(bytes_.data(), dtype, i, random_normal(seed, 0, static_cast<std::uint64_t>(i)));
  }

  void fill(Backend& backend, const TensorView& view) {
    const auto size = static_cast<std::int64_t>(bytes_.size()), half = size / 2;
    for (std::int64_t at = 0; at < view.bytes(); at += half) {
      const auto offset = static_cast<std::int64_t>(mix64(seed_ ^ ++stretch_) % static_cast<std::uint64_t>(half / 16));
      backend.copy_from_host(static_cast<std::byte*>(view.data) + at, bytes_.data() + offset * 16,
                             std::min(half, view.bytes() - at));
    }
    backend.synchronize();
  }

 private:
  static constexpr std::int64_t kElements = std::int64_t{1} << 20;
  std::uint64_t seed_;
  std::uint64_t stretch_ = 0;
  std::vector<std::byte> bytes_;
};

/// Numbers between ranks, through the backend's memory, which every transport moves.
class Numbers {
 public:
  Numbers(Backend& backend, Transport& transport) : backend_(backend), transport_(transport) {}

  /// Rank 0's values, on every rank.
  void broadcast(std::span<double> values) {
    std::vector<Message> sends, recvs;
    const OwnedTensor memory = room(values);
    upload(values, memory);
    if (transport_.rank() != 0)
      recvs.push_back(message(0, memory));
    else
      for (std::int32_t peer = 1; peer < transport_.num_ranks(); ++peer) sends.push_back(message(peer, memory));
    transport_.wait(transport_.begin(sends, recvs, "broadcast of rank 0"));
    download(memory, values);
  }

  /// Every rank's values by rank, on rank 0; nothing elsewhere.
  [[nodiscard]] std::vector<std::vector<double>> gather(std::span<const double> values) {
    std::vector<std::vector<double>> all;
    for (std::int32_t peer = 0; peer < transport_.num_ranks(); ++peer) {
      std::vector<double> of_peer(values.begin(), values.end());
      const OwnedTensor memory = room(of_peer);
      upload(of_peer, memory);
      std::vector<Message> sends, recvs;
      if (peer != 0 && transport_.rank() == peer) sends.push_back(message(0, memory));
      if (peer != 0 && transport_.rank() == 0) recvs.push_back(message(peer, memory));
      if (!sends.empty() || !recvs.empty()) transport_.wait(transport_.begin(sends, recvs, "samples"));
      download(memory, of_peer);
      if (transport_.rank() == 0) all.push_back(std::move(of_peer));
    }
    return all;
  }

 private:
  /// Two fp32 words a number.
  [[nodiscard]] OwnedTensor room(std::span<const double> values) {
    return OwnedTensor(backend_, DType::fp32, std::ssize(values), 1, 2);
  }
  void upload(std::span<const double> values, const OwnedTensor& memory) {
    backend_.copy_from_host(memory.view().data, values.data(), memory.view().bytes());
    backend_.synchronize();
  }
  void download(const OwnedTensor& memory, std::span<double> values) {
    backend_.copy_to_host(values.data(), memory.view().data, memory.view().bytes());
  }
  static Message message(std::int32_t peer, const OwnedTensor& memory) {
    return {peer, memory.view().data, memory.view().bytes()};
  }

  Backend& backend_;
  Transport& transport_;
};

/// One rank's tensors, bound layer and clock.
class RankBench {
 public:
  RankBench(const Plan& plan, const BenchOptions& options, int threads, Transport& transport)
      : options_(options),
        inner_(options.backend(threads)),
        trace_(options.trace ? std::make_unique<RankTrace>(*inner_, transport) : nullptr),
        backend_(trace_ ? trace_->backend() : *inner_),
        transport_(trace_ ? trace_->transport() : transport),
        access_(backend_, transport_),
        rank_plan_(make_rank_plan(plan, transport.rank(), options.layer, threads)),
        q_(tensor(plan.model.heads)),
        k_(tensor(plan.model.kv_heads)),
        v_(tensor(plan.model.kv_heads)),
        out_(tensor(plan.model.heads)),
        dout_(tensor(plan.model.heads)),
        dq_(tensor(plan.model.heads)),
        dk_(tensor(plan.model.kv_heads)),
        dv_(tensor(plan.model.kv_heads)),
        lse_(backend_, DType::fp32, rank_plan_.header().rows, plan.model.heads, 1),
        saved_(backend_, DType::fp32, saved_bytes(rank_plan_, options.dtype) / 4, 1, 1),
        tensor_bytes_(backend_.allocated_bytes()),
        attention_(rank_plan_, options.dtype, options.attention, backend_, transport_),
        numbers_(backend_, transport_) {
    const std::int64_t allocated = backend_.allocated_bytes() - tensor_bytes_;
    // The rest is memory that the transport reserved.
    const std::int64_t workspace =
        transport_.reserves() ? workspace_bytes(rank_plan_, options.dtype, backend_) : allocated;
    samples_.counts[RankSamples::workspace] = static_cast<double>(workspace);
    samples_.counts[RankSamples::memory] = static_cast<double>(backend_.peak_bytes() + workspace - allocated);
    Noise noise(options.dtype, options.seed + static_cast<std::uint64_t>(transport.rank()));
    for (const OwnedTensor* tensor : {&q_, &k_, &v_, &dout_}) noise.fill(backend_, tensor->view());
  }

  std::vector<RankSamples> run() {
    count_bytes(RankSamples::forward_bytes, &RankBench::forward);
    sample(&RankBench::forward, {Timed::forward, Timed::forward_compute, Timed::forward_communication});
    if (!options_.forward_only) {
      forward();  // the last pass attended nothing
      count_bytes(RankSamples::backward_bytes, &RankBench::backward);
      sample(&RankBench::backward, {Timed::backward, Timed::backward_compute, Timed::backward_communication});
      sample(&RankBench::both, {Timed::both});
    }
    if (trace_) trace();
    return gather();
  }

 private:
  using PassFunction = void (RankBench::*)();

  /// The transport may move host bytes only, and tensors are the backend's memory.
  class Access {
   public:
    Access(Backend& backend, Transport& transport) : backend_(backend), transport_(transport) { set(); }
    ~Access() { transport_.set_memory_access({}); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

    void set() {
      transport_.set_memory_access(
          {[this](void* to, const void* from, std::int64_t bytes) { backend_.copy_to_host(to, from, bytes); },
           [this](void* to, const void* from, std::int64_t bytes) { backend_.copy_from_host(to, from, bytes); }});
    }

   private:
    Backend& backend_;
    Transport& transport_;
  };

  [[nodiscard]] OwnedTensor tensor(std::int32_t heads) {
    return OwnedTensor(backend_, options_.dtype, rank_plan_.header().rows, heads, rank_plan_.header().head_dim);
  }

  void forward() {
    attention_forward(attention_, {q_.view(), k_.view(), v_.view(), out_.view(), lse_.view(), saved_.view().data});
  }
  void backward() {
    attention_backward(attention_, {q_.view(),
                                    k_.view(),
                                    v_.view(),
                                    out_.view(),
                                    lse_.view(),
                                    dout_.view(),
                                    dq_.view(),
                                    dk_.view(),
                                    dv_.view(),
                                    {},
                                    saved_.view().data});
  }
  void both() {
    forward();
    backward();
  }

  void trace() {
    transport_.agree(0, "start of the trace");
    attention_.observe(&trace_->observer());
    trace_->record(true);
    options_.forward_only ? forward() : both();
    attention_.observe(nullptr);
    backend_.synchronize();
    transport_.check();
    transport_.set_memory_access({});
    const std::string events = trace_->gather();
    if (transport_.rank() == 0) options_.trace(events);
    access_.set();
  }

  void count_bytes(RankSamples::Count count, PassFunction pass) {
    const std::int64_t before = transport_.bytes_received();
    (this->*pass)();
    backend_.synchronize();
    samples_.counts[count] = static_cast<double>(transport_.bytes_received() - before);
  }

  /// Milliseconds of one of `batch` passes in a row, begun together on all ranks.
  double time(PassFunction pass, Part part, std::int64_t batch) {
    backend_.synchronize();
    transport_.agree(static_cast<std::uint64_t>(batch), "passes of a sample");
    backend_.part = transport_.part = part;
    const auto timeline = backend_.make_timeline();
    static_cast<void>(timeline->mark());
    for (std::int64_t i = 0; i < batch; ++i) (this->*pass)();
    static_cast<void>(timeline->mark());
    const std::vector<std::int64_t> points = timeline->nanoseconds();
    transport_.check();
    backend_.part = transport_.part = Part::layer;
    return static_cast<double>(points[1] - points[0]) / 1e6 / static_cast<double>(batch);
  }

  /// Parts by turns: a part's works find the keys that the layer before them fetched.
  void sample(PassFunction pass, std::span<const Timed> timed) {
    constexpr Part kParts[] = {Part::layer, Part::compute, Part::communication};
    double first_ms = 0.0;
    for (int turn = 0; turn < options_.warm_up; ++turn) first_ms = time(pass, Part::layer, 1);
    numbers_.broadcast({&first_ms, 1});
    const auto batch = static_cast<std::int64_t>(std::clamp(std::ceil(kSampleMs / first_ms), 1.0, kMaxBatch));
    for (int turn = 0; turn < options_.repeats; ++turn)
      for (std::size_t i = 0; i < timed.size(); ++i)
        samples_.ms[static_cast<std::size_t>(timed[i])].push_back(time(pass, kParts[i], batch));
  }
  void sample(PassFunction pass, std::initializer_list<Timed> timed) { sample(pass, std::span(timed)); }

  std::vector<RankSamples> gather() {
    std::vector<double> flat(samples_.counts.begin(), samples_.counts.end());
    for (const auto& ms : samples_.ms) flat.insert(flat.end(), ms.begin(), ms.end());
    std::vector<RankSamples> ranks;
    for (const std::vector<double>& values : numbers_.gather(flat)) {
      RankSamples rank = samples_;
      auto at = values.begin();
      const auto take = [&](auto& target) {
        std::copy_n(at, target.size(), target.begin());
        at += std::ssize(target);
      };
      take(rank.counts);
      for (auto& ms : rank.ms) take(ms);
      ranks.push_back(std::move(rank));
    }
    return ranks;
  }

  const BenchOptions& options_;
  std::unique_ptr<Backend> inner_;
  std::unique_ptr<RankTrace> trace_;  // null: nobody asked
  PartBackend backend_;
  PartTransport transport_;
  Access access_;
  RankPlan rank_plan_;
  OwnedTensor q_, k_, v_, out_, dout_, dq_, dk_, dv_, lse_, saved_;
  std::int64_t tensor_bytes_;
  BoundAttention attention_;
  Numbers numbers_;
  RankSamples samples_;
};

}  // namespace

std::vector<RankSamples> sample_rank(const Plan& plan, const BenchOptions& options, int threads, Transport& transport) {
  return RankBench(plan, options, threads, transport).run();
}

}  // namespace marble

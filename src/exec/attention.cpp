// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/attention.hpp"

#include "base/fnv.hpp"
#include "exec/checks.hpp"
#include "exec/mover.hpp"
#include "exec/pass.hpp"

#include "marble/error.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace marble {
namespace {

/// Memory of a backend, given back at the end.
class Memory {
 public:
  Memory(Backend& backend, std::int64_t bytes)
      : backend_(backend), data_(static_cast<std::byte*>(backend.allocate(bytes))) {}
  ~Memory() { backend_.free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* at(std::int64_t offset) const { return data_ + offset; }

 private:
  Backend& backend_;
  std::byte* data_;
};

std::uint64_t version_digest() {
  constexpr std::string_view kVersion = MARBLE_VERSION;
  return fnv1a_words(kFnvOffset, std::as_bytes(std::span(kVersion)));
}

void zero_view(Backend& backend, const TensorView& view) {
  if (view.bytes() == 0) return;
  if (view.contiguous()) return backend.zero(view.data, view.bytes());
  for (std::int64_t row = 0; row < view.rows; ++row)
    for (std::int32_t head = 0; head < view.heads; ++head) {
      const TensorView element = view.block(row, 1, head, 1);
      backend.zero(element.data, element.bytes());
    }
}

}  // namespace

struct BoundAttention::Impl {
  const RankPlan& plan;
  DType dtype;
  AttentionOptions options;
  Backend& backend;
  Transport& transport;
  std::unique_ptr<BoundPlan> bound;
  WorkspaceLayout layout;
  std::unique_ptr<Memory> workspace;
  StepObserver* observer = nullptr;

  /// Everything that can be refused without the other ranks.
  void prepare();
  /// Throws on every rank when one refused (`refusal`: this rank does), or brings something else.
  void agree(bool refusal);
  void begin_pass(Pass pass) const {
    if (observer != nullptr) observer->begin_pass(fmt::format("layer {} {}", plan.header().layer, to_string(pass)));
  }
  void end_pass() const {
    if (observer != nullptr) observer->end_pass();
  }
  /// Rows beyond this rank's tokens.
  [[nodiscard]] TensorView pads(const TensorView& view) const {
    const RankPlanHeader& header = plan.header();
    return view.block(header.valid_rows, header.rows - header.valid_rows, 0, view.heads);
  }
};

void BoundAttention::Impl::prepare() {
  check_plan(plan, transport);
  check_options(options);
  backend.check_supported(plan, dtype, options);
  layout = lay_out_workspace(plan, dtype, backend, transport.reserves());
  bound = backend.bind(plan);
  workspace = std::make_unique<Memory>(backend, layout.bytes);
  const RankPlanHeader& header = plan.header();
  const std::vector<float> lse_pads(static_cast<std::size_t>((header.rows - header.valid_rows) * header.heads),
                                    -std::numeric_limits<float>::infinity());
  backend.copy_from_host(workspace->at(layout.lse_pads), lse_pads.data(),
                         static_cast<std::int64_t>(lse_pads.size() * sizeof(float)));
}

void BoundAttention::Impl::agree(bool refusal) {
  const std::array<std::pair<std::string_view, std::uint64_t>, 8> facts = {{
      {"refusal of the plan (0: none, else 1 + rank)",
       refusal ? 1 + static_cast<std::uint64_t>(transport.rank()) : std::uint64_t{0}},
      {"library version", version_digest()},
      {"plan digest", plan.header().plan_digest},
      {"layer", plan.header().layer},
      {"dtype (0 fp32, 1 bf16, 2 fp16)", static_cast<std::uint64_t>(dtype)},
      {"softmax_scale (bits of a double)", std::bit_cast<std::uint64_t>(options.softmax_scale)},
      {"softcap (bits of a double)", std::bit_cast<std::uint64_t>(options.softcap)},
      {"deterministic", options.deterministic ? 1 : 0},
  }};
  std::uint64_t all = kFnvOffset;
  for (const auto& [what, value] : facts) all = fnv1a(all, value);
  // One agreement is enough when there is one; what differs is worth finding out otherwise.
  try {
    transport.agree(all, "plan");
  } catch (const InvalidArgument&) {
    for (const auto& [what, value] : facts) transport.agree(value, what);
    throw;
  }
}

BoundAttention::BoundAttention(const RankPlan& plan, DType dtype, const AttentionOptions& options, Backend& backend,
                               Transport& transport)
    : impl_(new Impl{plan, dtype, options, backend, transport, nullptr, {}, nullptr}) {
  // A rank that refuses tells the others, so that nobody waits for it until the limit.
  std::exception_ptr refusal;
  try {
    impl_->prepare();
  } catch (...) {
    refusal = std::current_exception();
  }
  try {
    impl_->agree(refusal != nullptr);
  } catch (const InvalidArgument&) {
    if (!refusal) throw;
  }
  if (refusal) std::rethrow_exception(refusal);
  transport.reserve(impl_->layout.landing_bytes);
}

BoundAttention::~BoundAttention() = default;

void BoundAttention::observe(StepObserver* observer) {
  impl_->observer = observer;
}

namespace {

/// One pass over the plan's steps, with the caller's tensors in place.
class PassRun {
 public:
  PassRun(BoundAttention::Impl& impl, Pass pass, void* saved)
      : impl_(impl),
        pass_(pass),
        layout_(impl.layout.of(pass)),
        buffers_(impl.plan.buffers().size()),
        landing_(impl.transport.reserves() ? static_cast<std::byte*>(impl.transport.reserved())
                                           : impl.workspace->at(layout_.end)),
        fetch_(impl.plan, impl.backend, impl.transport, buffers_, landing_ + layout_.fetch_staging),
        give_back_(impl.plan, impl.backend, impl.transport, buffers_, landing_ + layout_.give_back_staging) {
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      std::byte* const data = place(b, static_cast<std::byte*>(saved));
      if (data == nullptr) continue;
      buffers_[b] = buffer_view(impl.plan, static_cast<std::int32_t>(b), impl.dtype, data);
      if (impl.plan.buffers()[b].zeroed != 0) zero_view(impl.backend, buffers_[b]);
    }
  }

  void set(Tensor tensor, const TensorView& view) { buffers_[static_cast<std::size_t>(index_of(tensor))] = view; }
  [[nodiscard]] const TensorView& buffer(std::int32_t index) const { return buffers_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const TensorView& buffer(Tensor tensor) const { return buffer(index_of(tensor)); }
  [[nodiscard]] void* carried() const { return impl_.workspace->at(layout_.carried); }

  /// The rows of a query-side, or key-side, buffer that a work attends.
  [[nodiscard]] TensorView queries(std::int32_t index) const {
    return buffer(index).block(0, impl_.plan.header().query_rows, 0, impl_.plan.header().local_heads);
  }
  [[nodiscard]] TensorView keys(std::int32_t index, const Work& work) const {
    return buffer(index).block(0, work.key_rows, 0, impl_.plan.header().local_kv_heads);
  }

  /// The next fetch travels while a step works, and a step's returns while the next one works. A sum may need what an
  /// earlier step gave back, so returns are completed before its finish; dQ's needs nothing and hides them.
  template <typename Attend>
  void run(Attend&& attend) {
    const std::span<const Step> all = steps(impl_.plan, pass_);
    if (!all.empty()) begin_fetch(all, 0);
    for (std::size_t s = 0; s < all.size(); ++s) {
      if (impl_.observer != nullptr) impl_.observer->begin_step(static_cast<std::int64_t>(s));
      fetch_.wait();
      if (s + 1 < all.size()) begin_fetch(all, s + 1);
      if (all[s].work >= 0) attend(all[s].work, impl_.plan.works()[static_cast<std::size_t>(all[s].work)]);
      finish(all[s].finishes, true);
      give_back_.wait();
      finish(all[s].finishes, false);
      give_back_.begin(all[s].give_back, label(s, "return"));
      if (impl_.observer != nullptr) impl_.observer->end_step();
    }
    give_back_.wait();
  }

 private:
  /// Where a buffer of this pass lies; null: with the caller, or nowhere.
  [[nodiscard]] std::byte* place(std::size_t buffer, std::byte* saved) const {
    constexpr std::int64_t kAbsent = PassLayout::kAbsent;
    if (impl_.layout.saved[buffer] != kAbsent) return saved + impl_.layout.saved[buffer];
    if (layout_.landing[buffer] != kAbsent) return landing_ + layout_.landing[buffer];
    return layout_.buffers[buffer] != kAbsent ? impl_.workspace->at(layout_.buffers[buffer]) : nullptr;
  }

  [[nodiscard]] std::string label(std::size_t step, std::string_view kind) const {
    return fmt::format("layer {} {} step {} {}", impl_.plan.header().layer, to_string(pass_), step, kind);
  }

  void begin_fetch(std::span<const Step> all, std::size_t s) { fetch_.begin(all[s].fetch, label(s, "fetch")); }

  void finish(const SectionRange& finishes, bool of_dq) {
    for (std::int64_t f = finishes.begin; f < finishes.end; ++f) {
      const Finish& entry = impl_.plan.finishes()[static_cast<std::size_t>(f)];
      if ((entry.source == Finish::kDQ) != of_dq) continue;
      if (entry.source == Finish::kDQ)
        impl_.backend.finish_dq(impl_.plan, carried(), buffer(entry.target));
      else
        impl_.backend.cast(buffer(entry.source), buffer(entry.target));
    }
  }

  BoundAttention::Impl& impl_;
  Pass pass_;
  const PassLayout& layout_;
  std::vector<TensorView> buffers_;
  std::byte* landing_;
  Mover fetch_, give_back_;
};

}  // namespace

void attention_forward(BoundAttention& attention, const ForwardCall& call) {
  BoundAttention::Impl& impl = attention.impl();
  check_call(impl.plan, impl.dtype, call);
  check_saved(call.saved, impl.layout.saved_bytes);
  impl.begin_pass(Pass::forward);
  PassRun pass(impl, Pass::forward, call.saved);
  pass.set(Tensor::q, call.q);
  pass.set(Tensor::k, call.k);
  pass.set(Tensor::v, call.v);
  pass.set(Tensor::out, call.out);
  pass.set(Tensor::lse, call.lse);
  pass.run([&](std::int32_t index, const Work& work) {
    const ForwardTensors tensors{pass.queries(work.q),   pass.keys(work.k, work), pass.keys(work.v, work),
                                 pass.queries(work.out), pass.queries(work.lse),  pass.carried()};
    impl.backend.forward(*impl.bound, index, tensors, impl.options);
  });
  zero_view(impl.backend, impl.pads(call.out));
  const TensorView lse_pads = impl.pads(call.lse);
  if (lse_pads.bytes() > 0) {
    void* const values = impl.workspace->at(impl.layout.lse_pads);
    const Copy copy{dense_view(values, DType::fp32, lse_pads.rows, lse_pads.heads, 1), lse_pads};
    impl.backend.copy({&copy, 1});
  }
  impl.end_pass();
}

void attention_backward(BoundAttention& attention, const BackwardCall& call) {
  BoundAttention::Impl& impl = attention.impl();
  check_call(impl.plan, impl.dtype, call);
  check_saved(call.saved, impl.layout.saved_bytes);
  impl.begin_pass(Pass::backward);
  PassRun pass(impl, Pass::backward, call.saved);
  pass.set(Tensor::q, call.q);
  pass.set(Tensor::k, call.k);
  pass.set(Tensor::v, call.v);
  pass.set(Tensor::out, call.out);
  pass.set(Tensor::lse, call.lse);
  pass.set(Tensor::dout, call.dout);
  pass.set(Tensor::dq, call.dq);
  pass.set(Tensor::dk, call.dk);
  pass.set(Tensor::dv, call.dv);
  impl.backend.zero(pass.carried(), impl.backend.dq_accumulator_bytes(impl.plan));
  const TensorView& delta = pass.buffer(Tensor::delta);
  const std::int64_t valid_rows = impl.plan.header().valid_rows;
  impl.backend.prepare_backward(call.out, call.dout, delta, valid_rows);
  if (call.delta_shift.data != nullptr && valid_rows > 0) {
    const Copy shift{call.delta_shift.block(0, valid_rows, 0, delta.heads), delta.block(0, valid_rows, 0, delta.heads),
                     true};
    impl.backend.copy({&shift, 1});
  }
  pass.run([&](std::int32_t index, const Work& work) {
    const BackwardTensors tensors{pass.queries(work.q),     pass.keys(work.k, work),  pass.keys(work.v, work),
                                  pass.queries(work.dout),  pass.queries(work.lse),   pass.queries(work.delta),
                                  pass.keys(work.dk, work), pass.keys(work.dv, work), pass.carried()};
    if (work.clear_gradients != 0) {
      zero_view(impl.backend, tensors.dk);
      zero_view(impl.backend, tensors.dv);
    }
    impl.backend.backward(*impl.bound, index, tensors, impl.options);
  });
  for (const TensorView& view : {call.dq, call.dk, call.dv}) zero_view(impl.backend, impl.pads(view));
  impl.end_pass();
}

std::int64_t saved_bytes(const RankPlan& plan, DType dtype) {
  WorkspaceLayout layout;
  lay_out_saved(plan, dtype, layout);
  return layout.saved_bytes;
}

std::int64_t workspace_bytes(const RankPlan& plan, DType dtype, const Backend& backend) {
  return lay_out_workspace(plan, dtype, backend, false).bytes;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "exec/pass.hpp"

#include "exec/mover.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <array>

namespace marble {
namespace {

/// Which buffers a pass touches.
class Uses {
 public:
  Uses(const RankPlan& plan, Pass pass) : plan_(plan), used_(plan.buffers().size()), lands_(plan.buffers().size()) {
    for (const Step& step : steps(plan, pass)) {
      add_exchange(step.fetch);
      add_exchange(step.give_back);
      if (step.work >= 0) add_work(plan.works()[static_cast<std::size_t>(step.work)], pass);
      for (std::int64_t f = step.finishes.begin; f < step.finishes.end; ++f) {
        const Finish& finish = plan.finishes()[static_cast<std::size_t>(f)];
        if (finish.source != Finish::kDQ) add(finish.source);
        add(finish.target);
      }
    }
    if (pass == Pass::backward)
      for (Tensor tensor : {Tensor::out, Tensor::dout, Tensor::delta}) add(index_of(tensor));
  }

  [[nodiscard]] bool operator[](std::int32_t buffer) const { return used_[static_cast<std::size_t>(buffer)]; }
  /// Workspace that exchanges receive into.
  [[nodiscard]] bool lands(std::int32_t buffer) const { return lands_[static_cast<std::size_t>(buffer)]; }

 private:
  void add(std::int32_t buffer) { used_[static_cast<std::size_t>(buffer)] = true; }

  void add_exchange(std::int32_t index) {
    if (index < 0) return;
    const Exchange& exchange = plan_.exchanges()[static_cast<std::size_t>(index)];
    for (const SectionRange& range : {exchange.sends, exchange.recvs})
      for (std::int64_t t = range.begin; t < range.end; ++t) add(plan_.transfers()[static_cast<std::size_t>(t)].buffer);
    for (std::int64_t t = exchange.recvs.begin; t < exchange.recvs.end; ++t) {
      const std::int32_t buffer = plan_.transfers()[static_cast<std::size_t>(t)].buffer;
      lands_[static_cast<std::size_t>(buffer)] = is_workspace(plan_, buffer);
    }
  }

  void add_work(const Work& work, Pass pass) {
    for (std::int32_t buffer : {work.q, work.k, work.v, work.lse}) add(buffer);
    if (pass == Pass::forward)
      add(work.out);
    else
      for (std::int32_t buffer : {work.dout, work.delta, work.dk, work.dv}) add(buffer);
  }

  const RankPlan& plan_;
  std::vector<bool> used_;
  std::vector<bool> lands_;
};

void check_callers(const Uses& uses, Pass pass) {
  constexpr std::array kForward = {Tensor::q, Tensor::k, Tensor::v, Tensor::out, Tensor::lse};
  if (pass == Pass::backward) return;
  for (std::int32_t buffer = 0; buffer < kNumTensors; ++buffer) {
    const auto tensor = static_cast<Tensor>(buffer);
    require(!uses[buffer] || std::ranges::count(kForward, tensor) == 1,
            "rank plan's forward pass uses {}, which a forward call does not bring", to_string(tensor));
  }
}

/// Bytes for the largest exchange of the pass that `member` of its steps names.
std::int64_t largest_staging(const RankPlan& plan, Pass pass, DType dtype, bool reserves, std::int32_t Step::*member) {
  std::int64_t largest = 0;
  for (const Step& step : steps(plan, pass))
    if (step.*member >= 0) largest = std::max(largest, staging_bytes(plan, dtype, step.*member, reserves));
  return largest;
}

/// A row of parts, each aligned.
class Extent {
 public:
  explicit Extent(std::int64_t begin) : end_(begin) {}
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t offset = end_;
    end_ += workspace_align(bytes);
    return offset;
  }
  [[nodiscard]] std::int64_t end() const { return end_; }

 private:
  std::int64_t end_;
};

PassLayout lay_out_pass(const RankPlan& plan, Pass pass, DType dtype, bool reserves, std::int64_t begin,
                        std::int64_t carried_bytes) {
  const Uses uses(plan, pass);
  check_callers(uses, pass);
  PassLayout layout;
  Extent own(begin), landing(0);
  for (std::int32_t buffer = 0; buffer < std::ssize(plan.buffers()); ++buffer) {
    const std::int64_t bytes = buffer_view(plan, buffer, dtype, nullptr).bytes();
    const bool is_own = uses[buffer] && is_workspace(plan, buffer), lands = is_own && uses.lands(buffer);
    layout.buffers.push_back(is_own && !lands ? own.take(bytes) : PassLayout::kAbsent);
    layout.landing.push_back(lands ? landing.take(bytes) : PassLayout::kAbsent);
  }
  layout.carried = own.take(carried_bytes);
  layout.fetch_staging = landing.take(largest_staging(plan, pass, dtype, reserves, &Step::fetch));
  layout.give_back_staging = landing.take(largest_staging(plan, pass, dtype, reserves, &Step::give_back));
  layout.end = own.end();
  layout.landing_bytes = landing.end();
  return layout;
}

}  // namespace

std::string_view to_string(Pass pass) {
  return pass == Pass::forward ? "forward" : "backward";
}

std::string_view to_string(Tensor tensor) {
  constexpr std::array<std::string_view, kNumTensors> kNames = {"q",    "k",     "v",  "out", "lse",
                                                                "dout", "delta", "dq", "dk",  "dv"};
  return kNames[static_cast<std::size_t>(tensor)];
}

bool is_workspace(const RankPlan& plan, std::int32_t buffer) {
  return !is_callers(buffer) && plan.buffers()[static_cast<std::size_t>(buffer)].saved == 0;
}

std::span<const Step> steps(const RankPlan& plan, Pass pass) {
  return pass == Pass::forward ? plan.forward_steps() : plan.backward_steps();
}

TensorView buffer_view(const RankPlan& plan, std::int32_t buffer, DType dtype, void* data) {
  const BufferDesc& desc = plan.buffers()[static_cast<std::size_t>(buffer)];
  return dense_view(data, desc.type == BufferType::io ? dtype : DType::fp32, desc.rows, desc.heads,
                    desc.scalar != 0 ? 1 : plan.header().head_dim);
}

void lay_out_saved(const RankPlan& plan, DType dtype, WorkspaceLayout& layout) {
  const auto num_buffers = static_cast<std::int32_t>(plan.buffers().size());
  for (std::int32_t buffer = 0; buffer < num_buffers; ++buffer) {
    const bool saved = plan.buffers()[static_cast<std::size_t>(buffer)].saved != 0;
    layout.saved.push_back(saved ? layout.saved_bytes : PassLayout::kAbsent);
    if (saved) layout.saved_bytes += workspace_align(buffer_view(plan, buffer, dtype, nullptr).bytes());
  }
}

WorkspaceLayout lay_out_workspace(const RankPlan& plan, DType dtype, const Backend& backend, bool reserves) {
  const RankPlanHeader& header = plan.header();
  const std::int64_t pad_bytes = (header.rows - header.valid_rows) * header.heads * size_of(DType::fp32);
  const std::int64_t begin = workspace_align(pad_bytes);
  WorkspaceLayout layout;
  layout.forward = lay_out_pass(plan, Pass::forward, dtype, reserves, begin, backend.state_bytes(plan));
  layout.backward = lay_out_pass(plan, Pass::backward, dtype, reserves, begin, backend.dq_accumulator_bytes(plan));
  for (const PassLayout* pass : {&layout.forward, &layout.backward}) {
    layout.bytes = std::max(layout.bytes, reserves ? pass->end : pass->end + pass->landing_bytes);
    if (reserves) layout.landing_bytes = std::max(layout.landing_bytes, pass->landing_bytes);
  }
  lay_out_saved(plan, dtype, layout);
  return layout;
}

}  // namespace marble

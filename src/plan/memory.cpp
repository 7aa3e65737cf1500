// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// What one rank holds: the sizes of the buffers that a rank plan names and of the staging that the executor takes for
// them, without making the rank plan. Alignment of single buffers is left out.

#include "plan/balance.hpp"
#include "plan/cost.hpp"
#include "plan/slices.hpp"

#include <algorithm>

namespace marble {
namespace {

constexpr std::int64_t kFp32 = 4;

/// Rows of the largest exchange of any step and ring rank that others fetch from that rank.
std::int64_t largest_delivery(const Plan& plan, const LayerPlan& layer) {
  const StepPeers peers(plan, layer);
  std::int64_t largest = 0;
  for (std::int64_t r = 0; r < plan.mesh.ring; ++r)
    for (std::int32_t s = 1; s <= layer.num_slices; ++s) {
      std::int64_t rows = 0;
      for (const std::int64_t query : peers.targets(r, s)) rows += fetched_rows(plan, layer, query, r);
      largest = std::max(largest, rows);
    }
  return largest;
}

/// Sizes of one layer's buffers on a Ulysses rank of the fullest ring rank, in bytes.
class LayerMemory {
 public:
  LayerMemory(const Plan& plan, const LayerPlan& layer, DType dtype, std::int32_t ulysses_rank,
              std::int64_t delivered_rows)
      : plan_(plan),
        model_(plan.model),
        ulysses_(plan.mesh.ulysses > 1),
        replicated_(replicates_key_heads(plan.model, plan.mesh.ulysses)),
        io_(model_.head_dim * size_of(dtype)),
        fp32_(model_.head_dim * kFp32),
        num_slices_(layer.num_slices) {
    const HeadShare own = head_share(model_, plan.mesh.ulysses, ulysses_rank);
    heads_ = {own.q.count, own.kv.count};
    others_ = {-own.q.count, -own.kv.count};
    for (std::int32_t u = 0; u < plan.mesh.ulysses; ++u) {
      const HeadShare share = head_share(model_, plan.mesh.ulysses, u);
      others_.q += share.q.count;
      others_.kv += share.kv.count;
    }
    slot_ = layer.slot_rows * heads_.kv;
    q_side_ = plan.rows * plan.mesh.ulysses * heads_.q;
    kv_side_ = plan.rows * plan.mesh.ulysses * heads_.kv;
    delivered_ = delivered_rows * heads_.kv;
  }

  /// q, out, dout, dq; k, v, dk, dv; lse.
  [[nodiscard]] std::int64_t callers() const {
    return plan_.rows * (4 * model_.heads * io_ + 4 * model_.kv_heads * io_ + model_.heads * kFp32);
  }

  /// What forward leaves for backward: the attention side, the fetched keys.
  [[nodiscard]] std::int64_t saved() const {
    const std::int64_t sides = ulysses_ && plan_.keep != Keep::nothing ? kept_sides() : 0;
    return sides + (plan_.keep == Keep::fetched ? num_slices_ * 2 * slot_ * io_ : 0);
  }

  [[nodiscard]] std::int64_t forward() const {
    std::int64_t bytes = slots_of_keys() + q_blocks() * (fp32_ + 2 * kFp32);  // carried output, max and sum
    if (!ulysses_) return bytes + packed_deliveries();
    bytes += unsaved_sides() + q_side_ * io_;  // out
    const std::int64_t scatter = plan_.rows * (others_.q + 2 * others_.kv) * io_;
    const std::int64_t gather = plan_.rows * others_.q * (io_ + kFp32);
    return bytes + scatter + gather;
  }

  [[nodiscard]] std::int64_t backward() const {
    std::int64_t bytes = slots_of_keys() + std::min<std::int64_t>(2, num_slices_) * 2 * slot_ * fp32_;
    bytes += plan_.rows * model_.heads * kFp32 + 2 * kv_side_ * fp32_;  // delta; sums of dk and dv
    bytes += q_blocks() * fp32_;                                        // carried dq
    const std::int64_t returned = 2 * delivered_ * fp32_;
    if (!ulysses_) return bytes + (plan_.keep == Keep::fetched ? 0 : packed_deliveries()) + returned;
    bytes += unsaved_sides() + 2 * q_side_ * io_ + q_side_ * kFp32;  // dout, dq, delta
    if (!replicated_) bytes += 2 * kv_side_ * io_;                   // dk, dv
    if (replicated_) bytes += 2 * plan_.rows * model_.kv_heads * fp32_;
    std::int64_t scatter = others_.q * (io_ + kFp32);  // dout, delta
    if (plan_.keep == Keep::nothing) scatter += others_.q * (io_ + kFp32) + 2 * others_.kv * io_;
    const std::int64_t kv_row = replicated_ ? fp32_ : io_;
    const std::int64_t gather = others_.q * io_ + 2 * others_.kv * kv_row;
    return bytes + plan_.rows * scatter + std::max(plan_.rows * gather, returned);
  }

 private:
  /// Query rows in whole blocks times heads: the backend's own order.
  [[nodiscard]] std::int64_t q_blocks() const {
    const std::int64_t rows = plan_.rows * plan_.mesh.ulysses;
    return (rows + plan_.block - 1) / plan_.block * plan_.block * heads_.q;
  }
  [[nodiscard]] std::int64_t slots_of_keys() const {
    return plan_.keep == Keep::fetched ? 0 : std::min<std::int64_t>(2, num_slices_) * 2 * slot_ * io_;
  }
  /// q, k, v and lse of the attention side.
  [[nodiscard]] std::int64_t kept_sides() const { return q_side_ * (io_ + kFp32) + 2 * kv_side_ * io_; }
  [[nodiscard]] std::int64_t unsaved_sides() const { return plan_.keep == Keep::nothing ? kept_sides() : 0; }
  /// A tensor of the caller may have any strides, so what is sent of it is packed.
  [[nodiscard]] std::int64_t packed_deliveries() const { return 2 * delivered_ * io_; }

  const Plan& plan_;
  const Model& model_;
  BusiestHeads heads_;   // of this rank
  BusiestHeads others_;  // of the other Ulysses ranks, replicas counted
  bool ulysses_, replicated_;
  std::int64_t io_, fp32_;  // bytes of one head's row
  std::int64_t num_slices_;
  std::int64_t slot_ = 0;                  // rows x key heads of a slot
  std::int64_t q_side_ = 0, kv_side_ = 0;  // rows x heads of the attention side
  std::int64_t delivered_ = 0;             // rows x key heads
};

}  // namespace

std::int64_t layer_memory_bytes(const Plan& plan, const LayerPlan& layer, DType dtype) {
  const std::int64_t delivered_rows = largest_delivery(plan, layer);
  std::int64_t largest = 0;
  for (std::int32_t u = 0; u < plan.mesh.ulysses; ++u) {
    const LayerMemory memory(plan, layer, dtype, u, delivered_rows);
    largest = std::max(largest, memory.callers() + memory.saved() + std::max(memory.forward(), memory.backward()));
  }
  return largest;
}

std::int64_t memory_bytes(const Plan& plan, std::int32_t layer, DType dtype) {
  return layer_memory_bytes(plan, layer_of(plan, layer), dtype);
}

std::int64_t memory_bytes(const Plan& plan, DType dtype) {
  std::int64_t largest = 0;
  for (const LayerPlan& layer : plan.layers) largest = std::max(largest, layer_memory_bytes(plan, layer, dtype));
  return largest;
}

}  // namespace marble

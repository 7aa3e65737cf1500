// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// What bench/across_gpus.py and bench/busy_link.py call through ctypes: layers over the GPUs of a torchrun job, on
// torch's memory and stream, and a link kept busy. Functions return null, or other than 0, on failure;
// marble_layer_error says why.

#include "marble/attention.hpp"
#include "marble/cost.hpp"
#include "marble/cuda.hpp"
#include "marble/error.hpp"
#include "marble/generators.hpp"
#include "marble/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace marble {
namespace {

std::string& last_error() {
  static std::string message;
  return message;
}

/// Calls fn, and turns what it throws into `failed`.
template <typename Result, typename Fn>
Result guarded(Result failed, Fn&& fn) {
  try {
    return fn();
  } catch (const std::exception& error) {
    last_error() = error.what();
    return failed;
  }
}

/// The only rank of a mesh: nothing ever travels.
class Alone final : public Transport {
 public:
  [[nodiscard]] std::string_view name() const override { return "alone"; }
  [[nodiscard]] std::int32_t rank() const override { return 0; }
  [[nodiscard]] std::int32_t num_ranks() const override { return 1; }
  void set_memory_access(MemoryAccess) override {}
  std::int64_t begin(std::span<const Message>, std::span<const Message>, std::string_view label) override {
    throw InvalidArgument(fmt::format("one rank has nobody to exchange '{}' with", label));
  }
  void wait(std::int64_t) override {}
  void agree(std::uint64_t, std::string_view) override {}
  [[nodiscard]] std::int64_t bytes_received() const override { return 0; }
};

struct Group {
  int device = 0;
  void* stream = nullptr;
  std::unique_ptr<Transport> transport;
  std::string description = {};
};

struct Layer {
  Group& group;
  Plan plan;
  RankPlan rank_plan;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<BoundAttention> attention;
  std::string description;

  [[nodiscard]] TensorView view(void* data, std::int32_t heads) const {
    return dense_view(data, DType::bf16, plan.rows, heads, plan.model.head_dim);
  }
  [[nodiscard]] TensorView lse(void* data) const {
    return dense_view(data, DType::fp32, plan.rows, plan.model.heads, 1);
  }
};

bool is_json(std::string_view layout) {
  return layout.starts_with('{');
}

Layout make_layout(std::string_view text, std::int64_t tokens, std::uint64_t seed) {
  return is_json(text) ? layout_from_json(text) : generate(text, tokens, seed);
}

/// The planner's mesh for all ranks of one node.
Mesh choose_mesh_of_node(const Layout& layout, const Model& model, std::int32_t num_ranks, const PlanOptions& options) {
  return choose_mesh(layout, model, num_ranks, num_ranks, options).best().mesh;
}

std::string describe(const Layer& layer) {
  const LayerCost cost = estimate(layer.plan);
  return fmt::format("{}x{} {} {}, {:.3f} ms predicted, {} workspace bytes, {}", layer.plan.mesh.ring,
                     layer.plan.mesh.ulysses, to_string(layer.plan.placement), to_string(layer.plan.layers[0].strategy),
                     static_cast<double>(cost.total_ns()) / 1e6,
                     workspace_bytes(layer.rank_plan, DType::bf16, *layer.backend), layer.group.transport->describe());
}

}  // namespace
}  // namespace marble

extern "C" {

const char* marble_layer_error() {
  return marble::last_error().c_str();
}

/// All ranks of the job, or with `alone` this process by itself.
void* marble_group_open(int device, void* stream, int alone) {
  using namespace marble;
  return guarded<void*>(nullptr, [&] {
    auto group = std::make_unique<Group>(Group{device, stream, nullptr});
    if (alone != 0) {
      group->transport = std::make_unique<Alone>();
    } else {
      NcclOptions options;
      options.device = device;
      options.stream = stream;
      group->transport = make_nccl_transport(options);
    }
    return group.release();
  });
}

void marble_group_close(void* group) {
  delete static_cast<marble::Group*>(group);
}

/// `layout`: a generator's name, with tokens and seed, or JSON. What is 0 or empty is the planner's choice: the mesh
/// (`ring` and `ulysses` together), strategy, placement.
void* marble_layer_open(void* group, const char* layout, std::int64_t tokens, std::uint64_t seed, std::int64_t window,
                        std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim, std::int32_t ring,
                        std::int32_t ulysses, const char* strategy, const char* placement) {
  using namespace marble;
  return guarded<void*>(nullptr, [&] {
    Model model{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .layers = {LayerKind{{window, false}, 1}}};
    if (!is_json(layout)) model.order_dependent = generator(layout).order_dependent;
    PlanOptions options;
    if (*strategy != '\0') options.strategy = parse_strategy(strategy);
    if (*placement != '\0') options.placement = parse_placement(placement);
    auto layer = std::make_unique<Layer>(Layer{*static_cast<Group*>(group), {}, {}, nullptr, nullptr, {}});
    Transport& transport = *layer->group.transport;
    const Layout pack = make_layout(layout, tokens, seed);
    const Mesh mesh = ring > 0 ? Mesh{.ring = ring, .ulysses = ulysses}
                               : choose_mesh_of_node(pack, model, transport.num_ranks(), options);
    layer->plan = make_plan(pack, model, mesh, options);
    layer->rank_plan = make_rank_plan(layer->plan, transport.rank());
    layer->backend = make_cuda_backend(layer->group.device, layer->group.stream);
    AttentionOptions attention;
    attention.softmax_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
    layer->attention =
        std::make_unique<BoundAttention>(layer->rank_plan, DType::bf16, attention, *layer->backend, transport);
    layer->description = describe(*layer);
    return layer.release();
  });
}

/// Of one layer, forward and backward.
double marble_layer_predicted_ms(void* layer) {
  return static_cast<double>(marble::estimate(static_cast<marble::Layer*>(layer)->plan).total_ns()) / 1e6;
}

void marble_layer_close(void* layer) {
  delete static_cast<marble::Layer*>(layer);
}

const char* marble_layer_describe(void* layer) {
  return static_cast<marble::Layer*>(layer)->description.c_str();
}

/// Rows of every tensor of this rank, pads included.
std::int64_t marble_layer_rows(void* layer) {
  return static_cast<marble::Layer*>(layer)->plan.rows;
}

std::int64_t marble_layer_tokens(void* layer) {
  return static_cast<marble::Layer*>(layer)->plan.layout.num_tokens();
}

std::int64_t marble_layer_legal_pairs(void* layer) {
  const marble::Plan& plan = static_cast<marble::Layer*>(layer)->plan;
  return marble::count_legal_pairs(plan.layout, plan.layers[0].kind.rule);
}

/// The pack position that each valid row holds; returns how many.
std::int64_t marble_layer_positions(void* layer, std::int64_t* positions) {
  const auto* here = static_cast<marble::Layer*>(layer);
  const std::vector<std::int64_t> rows = marble::rank_positions(here->plan, here->group.transport->rank());
  std::copy(rows.begin(), rows.end(), positions);
  return std::ssize(rows);
}

/// Sample, segment and noise of every token of the pack, for a peer's mask.
void marble_layer_tracks(void* layer, std::int32_t* sample, std::int32_t* segment, std::int32_t* noise) {
  const marble::Tracks tracks = marble::to_tracks(static_cast<marble::Layer*>(layer)->plan.layout);
  std::copy(tracks.sample.begin(), tracks.sample.end(), sample);
  std::copy(tracks.segment.begin(), tracks.segment.end(), segment);
  std::copy(tracks.noise.begin(), tracks.noise.end(), noise);
}

/// Tensors [rows, heads, head_dim] of this rank, dense; lse fp32 [rows, heads].
int marble_layer_forward(void* layer, void* q, void* k, void* v, void* out, void* lse) {
  return marble::guarded(1, [&] {
    auto& here = *static_cast<marble::Layer*>(layer);
    const marble::Model& model = here.plan.model;
    marble::attention_forward(*here.attention,
                              {here.view(q, model.heads), here.view(k, model.kv_heads), here.view(v, model.kv_heads),
                               here.view(out, model.heads), here.lse(lse)});
    return 0;
  });
}

int marble_layer_backward(void* layer, void* q, void* k, void* v, void* out, void* lse, void* dout, void* dq, void* dk,
                          void* dv) {
  return marble::guarded(1, [&] {
    auto& here = *static_cast<marble::Layer*>(layer);
    const marble::Model& model = here.plan.model;
    marble::attention_backward(
        *here.attention, {here.view(q, model.heads), here.view(k, model.kv_heads), here.view(v, model.kv_heads),
                          here.view(out, model.heads), here.lse(lse), here.view(dout, model.heads),
                          here.view(dq, model.heads), here.view(dk, model.kv_heads), here.view(dv, model.kv_heads)});
    return 0;
  });
}

const char* marble_group_describe(void* group) {
  auto* here = static_cast<marble::Group*>(group);
  here->description = here->transport->describe();
  return here->description.c_str();
}

/// Throws into marble_layer_error what the transport met on its stream.
int marble_group_check(void* group) {
  return marble::guarded(1, [&] {
    static_cast<marble::Group*>(group)->transport->check();
    return 0;
  });
}

/// Collective: memory that peers can write `bytes` to; null where any memory is as good, or on failure.
void* marble_group_reserve(void* group, std::int64_t bytes) {
  return marble::guarded<void*>(nullptr, [&] {
    marble::Transport& transport = *static_cast<marble::Group*>(group)->transport;
    if (!transport.reserves()) return static_cast<void*>(nullptr);
    transport.reserve(bytes);
    return transport.reserved();
  });
}

/// Sends `bytes` to the next rank and receives as many from the previous one; returns a ticket, below 0 on failure.
std::int64_t marble_group_begin(void* group, void* send, void* receive, std::int64_t bytes) {
  return marble::guarded<std::int64_t>(-1, [&] {
    marble::Transport& transport = *static_cast<marble::Group*>(group)->transport;
    const std::int32_t ranks = transport.num_ranks(), rank = transport.rank();
    const marble::Message out{(rank + 1) % ranks, send, bytes}, in{(rank + ranks - 1) % ranks, receive, bytes};
    return transport.begin({&out, 1}, {&in, 1}, "busy link");
  });
}

int marble_group_wait(void* group, std::int64_t ticket) {
  return marble::guarded(1, [&] {
    static_cast<marble::Group*>(group)->transport->wait(ticket);
    return 0;
  });
}
}

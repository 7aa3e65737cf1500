// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// What the form of a rank plan costs the forward kernels of GPU 0: the same mask said in two ways, timed by turns.
// Outputs are the same to the bit, which is checked first. One JSON row a comparison, on standard output.
//
//   gpu_plan_forms MACHINE > bench/results/gpu_plan_forms.jsonl

#include "marble_commit.hpp"
#include "plan/rank_plan_parts.hpp"

#include "marble/cuda.hpp"
#include "marble/error.hpp"
#include "marble/generators.hpp"
#include "marble/plan.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace marble {
namespace {

constexpr std::int32_t kHeads = 32;
constexpr std::int32_t kKvHeads = 4;
constexpr std::int32_t kHeadDim = 128;
constexpr int kRepeats = 9;
constexpr int kWarmUp = 2;

using Edit = std::function<void(RankPlanParts&)>;

struct Comparison {
  std::string name;
  std::string layout;
  RankPlan base;
  Edit edit;
};

/// One rank's plan of a layout.
RankPlan plan_of(const Layout& layout, std::int64_t window) {
  Model model;
  model.heads = kHeads;
  model.kv_heads = kKvHeads;
  model.head_dim = kHeadDim;
  model.layers = {LayerKind{{window, false}, 1}};
  return make_rank_plan(make_plan(layout, model, Mesh{}), 0);
}

Layout dense(std::int64_t tokens) {
  Layout layout;
  layout.add_sample(std::vector<Span>{{Mode::full, tokens}});
  return layout;
}

RankPlan edited(const RankPlan& plan, const Edit& edit) {
  RankPlanParts parts = parts_of(plan);
  edit(parts);
  return assemble(parts);
}

void use_tracks(RankPlanParts& parts) {
  parts.header.uses_tracks = 1;
}

/// Every run as runs of one block.
void shorten_runs(RankPlanParts& parts) {
  std::vector<Run> runs;
  for (Item& item : parts.items) {
    const auto begin = static_cast<std::int64_t>(runs.size());
    const auto old = std::span(parts.runs)
                         .subspan(static_cast<std::size_t>(item.run_begin), static_cast<std::size_t>(item.run_count));
    for (const Run& run : old)
      for (std::int32_t block = run.begin; block < run.end; ++block)
        runs.push_back({block, block + 1, run.block_class});
    item.run_begin = begin;
    item.run_count = static_cast<std::int32_t>(static_cast<std::int64_t>(runs.size()) - begin);
  }
  parts.runs = std::move(runs);
}

/// The only work's queries up to `blocks` blocks, gradients left out.
void keep_queries(RankPlanParts& parts, std::int32_t blocks) {
  Work& work = parts.works.at(0);
  std::erase_if(parts.items, [&](const Item& item) { return item.block >= blocks; });
  parts.items.resize(static_cast<std::size_t>(blocks));  // those of the forward pass come first
  work.forward_items = {0, blocks};
  work.backward_items = {blocks, blocks};
  work.tiles = 0;
  for (const Item& item : parts.items) work.tiles += item.tiles;
}

/// The only work as `count` works of equal parts of its key blocks, which a dense mask's items meet in one run.
void carry_state(RankPlanParts& parts, std::int32_t count) {
  const Work whole = parts.works.at(0);
  const std::vector<Item> items = parts.items;
  const std::vector<Run> runs = parts.runs;
  parts.items.clear();
  parts.runs.clear();
  parts.works.assign(static_cast<std::size_t>(count), whole);
  for (std::int32_t part = 0; part < count; ++part) {
    Work& work = parts.works[static_cast<std::size_t>(part)];
    work.tiles = 0;
    work.forward_items.begin = static_cast<std::int64_t>(parts.items.size());
    for (Item item : items) {
      const Run& run = runs[static_cast<std::size_t>(item.run_begin)];
      const std::int32_t length = (run.end - run.begin) / count;
      item.run_begin = static_cast<std::int64_t>(parts.runs.size());
      item.tiles = length;
      item.flags = (part == 0 ? Item::kFirst : 0) | (part == count - 1 ? Item::kLast : 0);
      parts.items.push_back(item);
      parts.runs.push_back({run.begin + part * length, run.begin + (part + 1) * length, run.block_class});
      work.tiles += length;
    }
    work.forward_items.end = static_cast<std::int64_t>(parts.items.size());
    work.backward_items = {work.forward_items.end, work.forward_items.end};
  }
  Step step = parts.forward_steps.at(0);
  parts.forward_steps.clear();
  for (std::int32_t part = 0; part < count; ++part) {
    step.work = part;
    parts.forward_steps.push_back(step);
  }
}

std::vector<Comparison> comparisons() {
  constexpr std::int64_t kTokens = 65536;
  std::vector<Comparison> result;
  for (const auto& [name, window] : {std::pair{"qwen3vl-docs", 0}, {"bagel-mix", 0}, {"gemma3-docs", 1024}}) {
    const std::string text = window > 0 ? fmt::format("{} 64k, window {}", name, window) : fmt::format("{} 64k", name);
    result.push_back(
        {"four-track test over visible ranges", text, plan_of(generate(name, kTokens, 0), window), use_tracks});
  }
  result.push_back({"runs of one block over one run a row", "dense 16k", plan_of(dense(16384), 0), shorten_runs});
  constexpr std::int64_t kKeys = 131072;
  const RankPlan wide = edited(plan_of(dense(kKeys), 0), [](RankPlanParts& parts) { keep_queries(parts, 128); });
  result.push_back({"eight carried works over one", "16k queries, 128k keys, dense", wide,
                    [](RankPlanParts& parts) { carry_state(parts, 8); }});
  return result;
}

/// Memory of one backend, given back at the end.
class Memory {
 public:
  explicit Memory(Backend& backend) : backend_(backend) {}
  ~Memory() {
    for (void* data : owned_) backend_.free(data);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* take(std::int64_t bytes) {
    if (bytes > 0) owned_.push_back(backend_.allocate(bytes));
    return bytes > 0 ? owned_.back() : nullptr;
  }

  TensorView random(std::int64_t rows, std::int32_t heads) {
    constexpr std::int64_t kPeriod = 1024;  // rows after which the numbers come again
    const TensorView view = dense_view(take(rows * heads * kHeadDim * 2), DType::bf16, rows, heads, kHeadDim);
    std::vector<float> numbers(static_cast<std::size_t>(kPeriod * heads * kHeadDim));
    std::generate(numbers.begin(), numbers.end(), [&] { return normal_(generator_); });
    const auto bytes = static_cast<std::int64_t>(numbers.size() * sizeof(float));
    const TensorView source = dense_view(take(bytes), DType::fp32, kPeriod, heads, kHeadDim);
    backend_.copy_from_host(source.data, numbers.data(), bytes);
    for (std::int64_t row = 0; row < rows; row += kPeriod) {
      const std::int64_t count = std::min(kPeriod, rows - row);
      backend_.cast(source.block(0, count, 0, heads), view.block(row, count, 0, heads));
    }
    return view;
  }

 private:
  Backend& backend_;
  std::vector<void*> owned_;
  std::mt19937 generator_;
  std::normal_distribution<float> normal_;
};

class Subject {
 public:
  Subject(Backend& backend, Memory& memory, const RankPlan& plan, const ForwardTensors& tensors)
      : backend_(backend), plan_(plan), bound_(backend.bind(plan_)), tensors_(tensors) {
    tensors_.state = memory.take(backend.state_bytes(plan_));
  }

  void forward() {
    for (const Step& step : plan_.forward_steps())
      if (step.work >= 0) backend_.forward(*bound_, step.work, tensors_, {.softmax_scale = 1 / std::sqrt(kHeadDim)});
  }

  [[nodiscard]] std::vector<std::uint16_t> output() {
    forward();
    std::vector<std::uint16_t> result(static_cast<std::size_t>(tensors_.out.bytes()) / 2);
    backend_.copy_to_host(result.data(), tensors_.out.data, tensors_.out.bytes());
    return result;
  }

 private:
  Backend& backend_;
  RankPlan plan_;
  std::unique_ptr<BoundPlan> bound_;
  ForwardTensors tensors_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + kRepeats / 2, values.end());
  return values[kRepeats / 2];
}

/// Median milliseconds of both, by turns.
std::pair<double, double> times(Backend& backend, Subject& base, Subject& form) {
  const auto timeline = backend.make_timeline();
  for (int turn = 0; turn < kWarmUp + kRepeats; ++turn)
    for (Subject* subject : {&base, &form}) {
      timeline->mark();
      subject->forward();
      timeline->mark();
    }
  const std::vector<std::int64_t> marks = timeline->nanoseconds();
  std::vector<double> found[2];
  for (std::size_t turn = kWarmUp; turn < kWarmUp + kRepeats; ++turn)
    for (std::size_t i = 0; i < 2; ++i)
      found[i].push_back(static_cast<double>(marks[4 * turn + 2 * i + 1] - marks[4 * turn + 2 * i]) / 1e6);
  return {median(found[0]), median(found[1])};
}

nlohmann::ordered_json compare(const Comparison& comparison, const std::string& machine) {
  const auto backend = make_cuda_backend(0);
  Memory memory(*backend);
  const RankPlanHeader& header = comparison.base.header();
  const std::int64_t rows = header.rows;
  const ForwardTensors tensors = {memory.random(rows, kHeads), memory.random(rows, kKvHeads),
                                  memory.random(rows, kKvHeads), memory.random(rows, kHeads),
                                  dense_view(memory.take(rows * kHeads * 4), DType::fp32, rows, kHeads, 1)};
  Subject base(*backend, memory, comparison.base, tensors);
  Subject form(*backend, memory, edited(comparison.base, comparison.edit), tensors);
  require(base.output() == form.output(), "{}: other bits", comparison.name);
  const auto [base_ms, form_ms] = times(*backend, base, form);
  return {{"comparison", comparison.name},
          {"layout", comparison.layout},
          {"heads", kHeads},
          {"kv_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"base_ms", base_ms},
          {"ms", form_ms},
          {"ratio", form_ms / base_ms},
          {"machine", machine},
          {"commit", MARBLE_COMMIT},
          {"command", "bench/gpu_plan_forms"}};
}

int run(const std::string& machine) {
  for (const Comparison& comparison : comparisons()) {
    const nlohmann::ordered_json row = compare(comparison, machine);
    fmt::print("{}\n", row.dump());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace marble

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: gpu_plan_forms MACHINE, the name that its rows give to GPU 0's machine\n");
    return 2;
  }
  try {
    return marble::run(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_plan_forms: {}\n", error.what());
    return 1;
  }
}

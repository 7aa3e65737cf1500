// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/attention_case.hpp"

#include "backend/device_tensor.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

namespace marble::testing {
namespace {

using Indices = std::vector<std::int64_t>;

/// Rows `indices` of a tensor [canonical][heads][dim]; pads are NaN.
std::vector<double> gather(const std::vector<double>& values, const Indices& indices, std::size_t row_size) {
  std::vector<double> result;
  for (std::int64_t index : indices) {
    if (index == kPadKey) {
      result.insert(result.end(), row_size, std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(index) * row_size);
    result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(row_size));
  }
  return result;
}

Indices all_keys(const BruteSpec& spec) {
  Indices keys;
  for (const Indices& work : spec.works)
    std::ranges::copy_if(work, std::back_inserter(keys), [](std::int64_t key) { return key != kPadKey; });
  return keys;
}

/// Makes tensors of a case, and keeps what they share.
class TensorMaker {
 public:
  TensorMaker(Backend& backend, const AttentionCase& problem) : backend_(backend), problem_(problem) {}

  DeviceTensor queries(DType dtype, std::int32_t dim) const {
    return tensor(dtype, problem_.spec.queries.size(), static_cast<std::int32_t>(problem_.spec.head_map.size()), dim);
  }
  DeviceTensor keys(DType dtype, std::size_t work) const {
    return tensor(dtype, problem_.spec.works[work].size(), problem_.spec.kv_heads, problem_.spec.head_dim);
  }

 private:
  DeviceTensor tensor(DType dtype, std::size_t valid_rows, std::int32_t heads, std::int32_t dim) const {
    const auto valid = static_cast<std::int64_t>(valid_rows);
    return {backend_, dtype, valid, valid + problem_.spec.pad_rows, heads, dim, problem_.strides};
  }

  Backend& backend_;
  const AttentionCase& problem_;
};

/// The rows of a work's keys, pads left out.
void append_keys(std::vector<double>& all, const std::vector<double>& rows, const Indices& keys, std::size_t row_size) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(i * row_size);
    if (keys[i] != kPadKey) all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(row_size));
  }
}

}  // namespace

AttentionInputs make_inputs(const AttentionCase& problem) {
  std::mt19937 random(problem.seed);
  std::normal_distribution<double> normal;
  const std::size_t tokens = problem.spec.tokens.size();
  const auto fill = [&](std::size_t heads) {
    std::vector<double> values(tokens * heads * static_cast<std::size_t>(problem.spec.head_dim));
    for (double& value : values) value = normal(random);
    return rounded(values, problem.dtype);
  };
  const std::size_t heads = problem.spec.head_map.size();
  const auto kv_heads = static_cast<std::size_t>(problem.spec.kv_heads);
  AttentionInputs inputs;
  inputs.q = fill(heads);
  inputs.k = fill(kv_heads);
  inputs.v = fill(kv_heads);
  inputs.dout = fill(heads);
  return inputs;
}

AttentionResult run_attention(Backend& backend, const AttentionCase& problem, const AttentionInputs& inputs,
                              std::vector<std::byte>* dq_sums) {
  const BruteSpec& spec = problem.spec;
  const RankPlan plan = make_brute_plan(spec);
  backend.check_supported(plan, problem.dtype, problem.options);
  const std::unique_ptr<BoundPlan> bound = backend.bind(plan);
  const TensorMaker make(backend, problem);
  const auto dim = static_cast<std::size_t>(spec.head_dim);
  const std::size_t row = spec.head_map.size() * dim;
  const std::size_t key_row = static_cast<std::size_t>(spec.kv_heads) * dim;
  const std::int64_t tiles_before = backend.tiles_computed();

  DeviceTensor q = make.queries(problem.dtype, spec.head_dim);
  DeviceTensor dout = make.queries(problem.dtype, spec.head_dim);
  q.set(gather(inputs.q, spec.queries, row));
  dout.set(gather(inputs.dout, spec.queries, row));
  std::vector<DeviceTensor> k, v;
  for (std::size_t w = 0; w < spec.works.size(); ++w) {
    k.push_back(make.keys(problem.dtype, w));
    v.push_back(make.keys(problem.dtype, w));
    k.back().set(gather(inputs.k, spec.works[w], key_row));
    v.back().set(gather(inputs.v, spec.works[w], key_row));
  }

  DeviceTensor out = make.queries(problem.dtype, spec.head_dim);
  DeviceTensor lse = make.queries(DType::fp32, 1);
  DeviceMemory state(backend, backend.state_bytes(plan));
  for (std::size_t w = 0; w < spec.works.size(); ++w)
    backend.forward(*bound, static_cast<std::int32_t>(w),
                    {q.view(), k[w].view(), v[w].view(), out.view(), lse.view(), state.data()}, problem.options);

  DeviceTensor delta = make.queries(DType::fp32, 1);
  backend.prepare_backward(out.view(), dout.view(), delta.view(), static_cast<std::int64_t>(spec.queries.size()));
  DeviceMemory accumulator(backend, backend.dq_accumulator_bytes(plan));
  backend.zero(accumulator.data(), backend.dq_accumulator_bytes(plan));
  AttentionResult result;
  for (std::size_t w = 0; w < spec.works.size(); ++w) {
    DeviceTensor dk = make.keys(DType::fp32, w);
    DeviceTensor dv = make.keys(DType::fp32, w);
    const std::vector<double> start(spec.works[w].size() * key_row, problem.gradient_start);
    dk.set(start);
    dv.set(start);
    backend.backward(*bound, static_cast<std::int32_t>(w),
                     {q.view(), k[w].view(), v[w].view(), dout.view(), lse.view(), delta.view(), dk.view(), dv.view(),
                      accumulator.data()},
                     problem.options);
    backend.synchronize();
    append_keys(result.dk, dk.get(), spec.works[w], key_row);
    append_keys(result.dv, dv.get(), spec.works[w], key_row);
  }
  DeviceTensor dq = make.queries(problem.dtype, spec.head_dim);
  backend.finish_dq(plan, accumulator.data(), dq.view());
  backend.synchronize();
  if (dq_sums != nullptr) *dq_sums = accumulator.read();
  result.out = out.get();
  result.lse = lse.get();
  result.dq = dq.get(PadRows::zero);
  result.tiles = backend.tiles_computed() - tiles_before;
  return result;
}

AttentionResult run_oracle(const AttentionCase& problem, const AttentionInputs& inputs,
                           const std::vector<double>& kept_out) {
  const BruteSpec& spec = problem.spec;
  const Indices keys = all_keys(spec);
  oracle::DenseProblem dense;
  for (std::int64_t query : spec.queries) dense.queries.push_back(spec.tokens[static_cast<std::size_t>(query)]);
  for (std::int64_t key : keys) dense.keys.push_back(spec.tokens[static_cast<std::size_t>(key)]);
  dense.rule = spec.rule;
  dense.kv_heads = spec.kv_heads;
  dense.head_map = spec.head_map;
  dense.dim = spec.head_dim;
  dense.scale = problem.options.softmax_scale;
  dense.softcap = problem.options.softcap;
  const auto dim = static_cast<std::size_t>(spec.head_dim);
  const std::size_t row = spec.head_map.size() * dim;
  const std::size_t key_row = static_cast<std::size_t>(spec.kv_heads) * dim;
  const std::vector<double> q = gather(inputs.q, spec.queries, row);
  const std::vector<double> k = gather(inputs.k, keys, key_row);
  const std::vector<double> v = gather(inputs.v, keys, key_row);
  oracle::DenseForward forward = oracle::dense_forward(dense, q, k, v);
  AttentionResult result;
  result.out = forward.out;
  result.lse = forward.lse;
  if (!kept_out.empty()) forward.out = kept_out;
  oracle::DenseBackward backward =
      oracle::dense_backward(dense, q, k, v, gather(inputs.dout, spec.queries, row), forward);
  result.dq = std::move(backward.dq);
  result.dk = std::move(backward.dk);
  result.dv = std::move(backward.dv);
  result.dq_size = backward.dq_size;
  result.dk_size = backward.dk_size;
  return result;
}

std::int64_t planned_tiles(const AttentionCase& problem) {
  const RankPlan plan = make_brute_plan(problem.spec);
  std::int64_t tiles = 0;
  for (const Item& item : plan.items()) tiles += item.tiles;
  return tiles;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b, double size) {
  ensure(a.size() == b.size(), "comparing {} values with {}", a.size(), b.size());
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference) / std::max(size, std::sqrt(norm));
}

double max_error(const std::vector<double>& a, const std::vector<double>& b) {
  ensure(a.size() == b.size(), "comparing {} values with {}", a.size(), b.size());
  double error = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::abs(a[i] - b[i]);
    error = difference <= error ? error : difference;  // a NaN is kept
  }
  return error;
}

std::vector<TokenTracks> canonical_tokens(const Layout& layout, Canonical canonical) {
  const Tracks tracks = to_tracks(layout);
  std::vector<TokenTracks> tokens;
  std::int64_t position = 0;
  const auto append_span = [&](std::int64_t begin, std::int64_t length) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(begin + length); ++i)
      tokens.push_back({tracks.sample[i], tracks.segment[i], tracks.noise[i], tracks.position[i]});
  };
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    std::vector<std::pair<std::int64_t, std::int64_t>> stacked;
    for (const Span& span : layout.sample(s)) {
      const bool goes_last = canonical == Canonical::stack && (span.mode == Mode::noise || span.mode == Mode::group);
      if (goes_last)
        stacked.emplace_back(position, span.length);
      else
        append_span(position, span.length);
      position += span.length;
    }
    for (auto span = stacked.rbegin(); span != stacked.rend(); ++span) append_span(span->first, span->second);
  }
  return tokens;
}

AttentionCase whole_case(const Layout& layout, Canonical canonical, const MaskRule& rule, std::int32_t dim,
                         std::int32_t block) {
  AttentionCase problem;
  BruteSpec& spec = problem.spec;
  spec.tokens = canonical_tokens(layout, canonical);
  spec.rule = rule;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(spec.tokens.size()); ++i) spec.queries.push_back(i);
  spec.works = {spec.queries};
  spec.use_tracks = !has_visible_ranges(spec);
  spec.block = block;
  spec.head_dim = dim;
  spec.pad_rows = 5;
  problem.options.softmax_scale = 1.0 / std::sqrt(static_cast<double>(dim));
  return problem;
}

AttentionCase split_works(const AttentionCase& problem, std::int64_t count, std::int64_t granule) {
  AttentionCase split = problem;
  split.spec.works.assign(static_cast<std::size_t>(count), {});
  const Indices keys = all_keys(problem.spec);
  for (std::size_t i = 0; i < keys.size(); ++i)
    split.spec.works[i / static_cast<std::size_t>(granule) % static_cast<std::size_t>(count)].push_back(keys[i]);
  return split;
}

}  // namespace marble::testing

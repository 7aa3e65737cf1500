// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/dense_reference.hpp"

#include "base/numeric.hpp"
#include "base/parallel.hpp"
#include "verify/dense_tile.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <thread>

namespace marble {
namespace {

using dense::kTile;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

double round_once(double value, DType dtype) {
  std::uint32_t rounded = 0;
  store_element(&rounded, dtype, 0, static_cast<float>(value));
  return static_cast<double>(load_element(&rounded, dtype, 0));
}

/// A tile of tokens against a tile of tokens, at least one pair of it legal.
struct TilePair {
  std::int64_t other = 0;
  bool all_legal = false;
};

/// Legal tiles of the whole mask, by query tile and by key tile.
class DenseMask {
 public:
  DenseMask(const Layout& layout, const MaskRule& rule, int threads) : rule_(rule), tokens_(layout.num_tokens()) {
    const Tracks tracks = to_tracks(layout);
    for (std::int64_t t = 0; t < tokens_; ++t)
      tracks_.push_back({tracks.sample[at(t)], tracks.segment[at(t)], tracks.noise[at(t)], tracks.position[at(t)]});
    by_query_.resize(at(num_tiles()));
    by_key_.resize(at(num_tiles()));
    parallel_for(num_tiles(), threads, [&](std::int64_t q) {
      for (std::int64_t k = 0; k < num_tiles(); ++k) scan(q, k);
    });
    for (std::int64_t q = 0; q < num_tiles(); ++q)
      for (const TilePair& pair : by_query_[at(q)]) by_key_[at(pair.other)].push_back({q, pair.all_legal});
  }

  [[nodiscard]] std::int64_t num_tiles() const { return (tokens_ + kTile - 1) / kTile; }
  [[nodiscard]] std::int64_t begin(std::int64_t tile) const { return tile * kTile; }
  [[nodiscard]] std::int64_t size(std::int64_t tile) const { return std::min(kTile, tokens_ - tile * kTile); }
  [[nodiscard]] const std::vector<TilePair>& keys_of(std::int64_t query_tile) const {
    return by_query_[at(query_tile)];
  }
  [[nodiscard]] const std::vector<TilePair>& queries_of(std::int64_t key_tile) const { return by_key_[at(key_tile)]; }

  /// mask[key][query], 1 where legal.
  void expand(std::int64_t query_tile, std::int64_t key_tile, std::uint8_t* mask) const {
    for (std::int64_t k = 0; k < size(key_tile); ++k)
      for (std::int64_t q = 0; q < size(query_tile); ++q)
        *mask++ = legal(begin(query_tile) + q, begin(key_tile) + k) ? 1 : 0;
  }

 private:
  [[nodiscard]] bool legal(std::int64_t query, std::int64_t key) const {
    return is_legal(rule_, tracks_[at(query)], tracks_[at(key)]);
  }

  void scan(std::int64_t query_tile, std::int64_t key_tile) {
    bool any = false;
    bool all = true;
    for (std::int64_t q = begin(query_tile); q < begin(query_tile) + size(query_tile) && !(any && !all); ++q)
      for (std::int64_t k = begin(key_tile); k < begin(key_tile) + size(key_tile); ++k) {
        const bool is = legal(q, k);
        any = any || is;
        all = all && is;
      }
    if (any) by_query_[at(query_tile)].push_back({key_tile, all});
  }

  MaskRule rule_;
  std::int64_t tokens_;
  std::vector<TokenTracks> tracks_;
  std::vector<std::vector<TilePair>> by_query_, by_key_;
};

/// Memory of one task.
struct Scratch {
  explicit Scratch(std::int64_t dim) {
    for (std::vector<double>* part : {&q, &k, &v, &dout, &out, &dq, &dk, &dv, &change}) part->resize(at(kTile * dim));
  }
  std::vector<double> q, k, v, dout;            // inputs of a tile
  std::vector<double> out, dq, dk, dv, change;  // results of a task, [dim][rows]
  std::array<double, kTile> max{}, sum{};       // online softmax
  std::array<double, kTile> lse{}, delta{}, delta_change{};
  std::array<std::uint8_t, kTile * kTile> mask{};
};

class Reference {
 public:
  Reference(const DenseMask& mask, const HeadShape& shape, const DenseInputs& inputs, const DenseOptions& options,
            std::int64_t tokens)
      : mask_(mask), shape_(shape), inputs_(inputs), options_(options), caller_(std::this_thread::get_id()) {
    result_.out.resize(inputs.q.size());
    result_.lse.resize(at(tokens * shape.heads));
    if (!options.backward) return;
    delta_.resize(result_.lse.size());
    delta_change_.resize(result_.lse.size());
    result_.dq_stored.resize(inputs.q.size());
    result_.dk_stored.resize(inputs.k.size());
    result_.dq.resize(inputs.q.size());
    result_.dk.resize(inputs.k.size());
    result_.dv.resize(inputs.v.size());
  }

  DenseResult run() {
    const std::int64_t query_tasks = mask_.num_tiles() * shape_.heads;
    const std::int64_t key_tasks = options_.backward ? mask_.num_tiles() * shape_.kv_heads : 0;
    num_tasks_ = query_tasks + key_tasks;
    for_tasks(query_tasks, shape_.heads, [&](std::int64_t tile, std::int32_t head) {
      Scratch scratch(shape_.head_dim);
      attend(tile, head, scratch);
      if (options_.backward) query_gradient(tile, head, scratch);
    });
    for_tasks(key_tasks, shape_.kv_heads, [&](std::int64_t tile, std::int32_t head) { key_gradient(tile, head); });
    return std::move(result_);
  }

 private:
  template <typename Fn>
  void for_tasks(std::int64_t count, std::int32_t heads, Fn&& fn) {
    parallel_for(count, options_.threads, [&](std::int64_t task) {
      // Late tiles see the most keys in causal packs: take them first.
      fn(mask_.num_tiles() - 1 - task / heads, static_cast<std::int32_t>(task % heads));
      const std::int64_t done = ++done_;
      if (options_.progress && std::this_thread::get_id() == caller_)
        options_.progress(static_cast<double>(done) / static_cast<double>(num_tasks_));
    });
  }

  [[nodiscard]] std::int32_t kv_head(std::int32_t head) const { return head / (shape_.heads / shape_.kv_heads); }

  /// Rows of a tile of tokens, one head, as fp64.
  void load(const std::vector<float>& tensor, std::int32_t heads, std::int64_t tile, std::int32_t head,
            std::vector<double>& target) const {
    const std::int64_t dim = shape_.head_dim;
    for (std::int64_t row = 0; row < mask_.size(tile); ++row) {
      const float* source = tensor.data() + ((mask_.begin(tile) + row) * heads + head) * dim;
      std::copy(source, source + dim, target.data() + row * dim);
    }
  }

  /// Stores a tile's results, value(i) of [dim][rows].
  template <typename T, typename Value>
  void store(std::vector<T>& tensor, std::int32_t heads, std::int64_t tile, std::int32_t head, Value&& value) const {
    const std::int64_t dim = shape_.head_dim;
    for (std::int64_t row = 0; row < mask_.size(tile); ++row)
      for (std::int64_t d = 0; d < dim; ++d)
        tensor[at(((mask_.begin(tile) + row) * heads + head) * dim + d)] =
            static_cast<T>(value(at(d * mask_.size(tile) + row)));
  }

  void load_keys(std::int64_t tile, std::int32_t head, Scratch& scratch) const {
    load(inputs_.k, shape_.kv_heads, tile, head, scratch.k);
    load(inputs_.v, shape_.kv_heads, tile, head, scratch.v);
  }

  dense::Tile make_tile(std::int64_t query_tile, std::int64_t key_tile, bool all_legal, Scratch& scratch) const {
    if (!all_legal) mask_.expand(query_tile, key_tile, scratch.mask.data());
    return {.rows = mask_.size(query_tile),
            .keys = mask_.size(key_tile),
            .dim = shape_.head_dim,
            .scale = options_.attention.softmax_scale,
            .softcap = options_.attention.softcap,
            .q = scratch.q.data(),
            .k = scratch.k.data(),
            .v = scratch.v.data(),
            .mask = all_legal ? nullptr : scratch.mask.data()};
  }

  void attend(std::int64_t tile, std::int32_t head, Scratch& scratch) {
    const std::int64_t rows = mask_.size(tile);
    load(inputs_.q, shape_.heads, tile, head, scratch.q);
    scratch.max.fill(-std::numeric_limits<double>::infinity());
    for (const TilePair& pair : mask_.keys_of(tile)) {
      load_keys(pair.other, kv_head(head), scratch);
      dense::attend(make_tile(tile, pair.other, pair.all_legal, scratch), scratch.out.data(), scratch.max.data(),
                    scratch.sum.data());
    }
    for (std::int64_t row = 0; row < rows; ++row)
      result_.lse[scalar(tile, row, shape_.heads, head)] = scratch.max[at(row)] + std::log(scratch.sum[at(row)]);
    store(result_.out, shape_.heads, tile, head, [&](std::size_t i) {
      const double sum = scratch.sum[i % at(rows)];
      return sum > 0 ? scratch.out[i] / sum : 0.0;
    });
  }

  [[nodiscard]] std::size_t scalar(std::int64_t tile, std::int64_t row, std::int32_t heads, std::int32_t head) const {
    return at((mask_.begin(tile) + row) * heads + head);
  }

  /// delta of a tile's rows, and what rounding the output once adds to it.
  void make_delta(std::int64_t tile, std::int32_t head) {
    for (std::int64_t row = 0; row < mask_.size(tile); ++row) {
      const std::size_t index = scalar(tile, row, shape_.heads, head);
      for (std::size_t e = index * at(shape_.head_dim); e < (index + 1) * at(shape_.head_dim); ++e) {
        const double dout = static_cast<double>(inputs_.dout[e]);
        delta_[index] += result_.out[e] * dout;
        delta_change_[index] += (round_once(result_.out[e], options_.dtype) - result_.out[e]) * dout;
      }
    }
  }

  dense::Gradient load_gradient(std::int64_t tile, std::int32_t head, Scratch& scratch) const {
    load(inputs_.dout, shape_.heads, tile, head, scratch.dout);
    for (std::int64_t row = 0; row < mask_.size(tile); ++row) {
      const std::size_t index = scalar(tile, row, shape_.heads, head);
      scratch.lse[at(row)] = result_.lse[index];
      scratch.delta[at(row)] = delta_[index];
      scratch.delta_change[at(row)] = delta_change_[index];
    }
    return {scratch.dout.data(), scratch.lse.data(), scratch.delta.data(), scratch.delta_change.data()};
  }

  void query_gradient(std::int64_t tile, std::int32_t head, Scratch& scratch) {
    make_delta(tile, head);
    const dense::Gradient gradient = load_gradient(tile, head, scratch);
    for (const TilePair& pair : mask_.keys_of(tile)) {
      load_keys(pair.other, kv_head(head), scratch);
      dense::add_query_gradient(make_tile(tile, pair.other, pair.all_legal, scratch), gradient, scratch.dq.data(),
                                scratch.change.data());
    }
    store(result_.dq, shape_.heads, tile, head, [&](std::size_t i) { return scratch.dq[i]; });
    store(result_.dq_stored, shape_.heads, tile, head,
          [&](std::size_t i) { return scratch.dq[i] + scratch.change[i]; });
  }

  void key_gradient(std::int64_t tile, std::int32_t head) {
    Scratch scratch(shape_.head_dim);
    load_keys(tile, head, scratch);
    const std::int32_t group = shape_.heads / shape_.kv_heads;
    for (std::int32_t q_head = head * group; q_head < (head + 1) * group; ++q_head)
      for (const TilePair& pair : mask_.queries_of(tile)) {
        load(inputs_.q, shape_.heads, pair.other, q_head, scratch.q);
        const dense::Gradient gradient = load_gradient(pair.other, q_head, scratch);
        dense::add_key_gradient(make_tile(pair.other, tile, pair.all_legal, scratch), gradient, scratch.dk.data(),
                                scratch.dv.data(), scratch.change.data());
      }
    store(result_.dk, shape_.kv_heads, tile, head, [&](std::size_t i) { return scratch.dk[i]; });
    store(result_.dv, shape_.kv_heads, tile, head, [&](std::size_t i) { return scratch.dv[i]; });
    store(result_.dk_stored, shape_.kv_heads, tile, head,
          [&](std::size_t i) { return scratch.dk[i] + scratch.change[i]; });
  }

  const DenseMask& mask_;
  HeadShape shape_;
  const DenseInputs& inputs_;
  const DenseOptions& options_;
  std::thread::id caller_;
  std::int64_t num_tasks_ = 0;
  std::atomic<std::int64_t> done_{0};
  std::vector<double> delta_, delta_change_;
  DenseResult result_;
};

}  // namespace

DenseResult dense_reference(const Layout& layout, const MaskRule& rule, const HeadShape& shape,
                            const DenseInputs& inputs, const DenseOptions& options) {
  const DenseMask mask(layout, rule, options.threads);
  return Reference(mask, shape, inputs, options, layout.num_tokens()).run();
}

}  // namespace marble

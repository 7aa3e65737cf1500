// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Online softmax over the key blocks of one query block and head (FlashAttention's recurrence), all in fp32.
//
// Invariants, between any two key blocks and across calls:
//   1. max is the largest score so far, -inf before the first legal key;
//   2. sum is the sum of exp(score - max) over the legal keys so far;
//   3. output is the sum of exp(score - max) * value, not yet divided.
// What follows from a key block depends on this state alone, so N calls give the bits of one call over the same blocks.

#include "backend/cpu/tile.hpp"

namespace marble::cpu::MARBLE_CPU_LEVEL {
namespace {

/// Views of the state and of the memory of one task.
struct ForwardState {
  Eigen::Map<Eigen::MatrixXf> output;  // tile rows x dim; the caller's memory has any alignment
  Column max, sum;
  Column factor, new_max;
  float* scores;
  float* queries;
  float* keys;
  float* values;
};

ForwardState make_state(const Problem& problem, const ForwardTask& task, float* scratch) {
  const std::int64_t rows = tile_rows(problem.block);
  const std::int64_t tile = rows * problem.head_dim;
  constexpr std::int32_t kWhole = Item::kFirst | Item::kLast;
  Scratch memory(scratch);
  // A block that meets all its keys in one work never touches the carried state.
  float* output = (task.item->flags & kWhole) == kWhole ? memory.take(tile) : task.state;
  ForwardState state{{output, rows, problem.head_dim},
                     {memory.take(rows), rows},
                     {memory.take(rows), rows},
                     {memory.take(rows), rows},
                     {memory.take(rows), rows},
                     memory.take(rows * rows),
                     memory.take(tile),
                     memory.take(tile),
                     memory.take(tile)};
  if (task.item->flags & Item::kFirst) {
    state.output.setZero();
    state.max.setConstant(-kInfinity);
    state.sum.setZero();
  } else {
    std::copy_n(task.state + tile, rows, state.max.data());
    std::copy_n(task.state + tile + rows, rows, state.sum.data());
  }
  return state;
}

void cap_scores(Tile& scores, float softcap) {
  scores.array() = softcap * (scores.array() * (1.0F / softcap)).tanh();
}

/// Turns scores into exp(score - max), moving the state to the new max.
void softmax_step(ForwardState& state, Tile& scores, const TileMask& mask, std::int64_t valid_rows) {
  const std::int64_t rows = scores.rows();
  state.new_max = state.max;
  for (std::int64_t key = 0; key < scores.cols(); ++key) {
    Column column(&scores(0, key), rows);
    mask.fill_column(key, column, -kInfinity);
    state.new_max = state.new_max.max(column);
  }
  // Rows that have seen no legal key keep max -inf; 0 in its place keeps inf - inf out.
  Column& shift = state.factor;
  shift = state.new_max.max(std::numeric_limits<float>::lowest());
  if ((state.new_max.head(valid_rows) != state.max.head(valid_rows)).any()) {
    Column factor(state.max.data(), rows);
    factor = (state.max - shift).exp();
    state.output.array().colwise() *= factor;
    state.sum *= factor;
  }
  state.max = state.new_max;
  Column& tile_sum = state.new_max;
  tile_sum.setZero();
  for (std::int64_t key = 0; key < scores.cols(); ++key) {
    Column column(&scores(0, key), rows);
    column = (column - shift).exp();
    mask.fill_column(key, column, 0.0F);  // the vectorised exp is not zero at -inf
    tile_sum += column;
  }
  state.sum += tile_sum;
}

void write_output(const Problem& problem, const ForwardTask& task, ForwardState& state, std::int64_t first,
                  std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const bool seen = state.sum[row] != 0.0F;
    state.factor[row] = seen ? state.sum[row] : 1.0F;
    const float lse = seen ? state.max[row] + std::log(state.sum[row]) : -kInfinity;
    *reinterpret_cast<float*>(element(task.lse, first + row)) = lse;
  }
  state.output.array().colwise() /= state.factor;
  Tile rows_first(state.values, problem.head_dim, rows);
  rows_first = state.output.topRows(rows).transpose();
  for (std::int64_t row = 0; row < rows; ++row)
    convert(&rows_first(0, row), DType::fp32, element(task.out, first + row), task.out.dtype, problem.head_dim);
}

}  // namespace

void forward(const Problem& problem, const ForwardTask& task, float* scratch) {
  const std::int64_t first = std::int64_t{task.item->block} * problem.block;
  const std::int64_t rows = problem.query_rows_in(task.item->block);
  if (rows == 0) return;
  ForwardState state = make_state(problem, task, scratch);
  const Tokens queries = load_tokens(task.q, first, rows, problem.head_dim, state.queries);
  for (std::int64_t r = task.item->run_begin; r < task.item->run_begin + task.item->run_count; ++r) {
    const Run& run = problem.runs[r];
    for (std::int64_t block = run.begin; block < run.end; ++block) {
      const std::int64_t first_key = block * problem.block;
      const std::int64_t num_keys = problem.key_valid[block];
      if (num_keys == 0) continue;
      const Tokens keys = load_tokens(task.k, first_key, num_keys, problem.head_dim, state.keys);
      const Tokens values = load_tokens(task.v, first_key, num_keys, problem.head_dim, state.values);
      Tile scores(state.scores, state.output.rows(), num_keys);
      scores.topRows(rows).noalias() = problem.scale * (queries.transpose() * keys);
      if (problem.softcap > 0.0F) cap_scores(scores, problem.softcap);
      softmax_step(state, scores, TileMask(problem, run.block_class, first, first_key, rows), rows);
      state.output.topRows(rows).noalias() += scores.topRows(rows) * values.transpose();
    }
  }
  if (task.item->flags & Item::kLast) {
    write_output(problem, task, state, first, rows);
  } else {
    const std::int64_t tile = state.output.size();
    std::copy_n(state.max.data(), state.max.size(), task.state + tile);
    std::copy_n(state.sum.data(), state.sum.size(), task.state + tile + state.sum.size());
  }
}

}  // namespace marble::cpu::MARBLE_CPU_LEVEL

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Gradients against the final log-sum-exp. With P = exp(S - lse) and dP = dO V^T:
//   dV += P^T dO    dS = P (dP - delta), times the softcap's slope    dQ += scale dS K    dK += scale dS^T Q
// dK and dV of a key block and key head belong to one task; dQ tiles are added to in the plan's order.

#include "backend/cpu/tile.hpp"

#include <thread>

namespace marble::cpu::MARBLE_CPU_LEVEL {
namespace {

/// The memory of one task, as views; tiles are cut to the keys of its block.
struct BackwardMemory {
  Tile scores, slope, gradient;  // tile rows x keys
  Tile dk, dv;                   // dim x keys
  Column lse, delta;
  float* queries;
  float* douts;
  float* keys;
  float* values;
};

BackwardMemory make_memory(const Problem& problem, std::int64_t num_keys, float* scratch) {
  const std::int64_t rows = tile_rows(problem.block);
  const std::int64_t tile = rows * problem.head_dim;
  Scratch memory(scratch);
  BackwardMemory result{{memory.take(rows * rows), rows, num_keys},
                        {memory.take(rows * rows), rows, num_keys},
                        {memory.take(rows * rows), rows, num_keys},
                        {memory.take(tile), problem.head_dim, num_keys},
                        {memory.take(tile), problem.head_dim, num_keys},
                        {memory.take(rows), rows},
                        {memory.take(rows), rows},
                        memory.take(tile),
                        memory.take(tile),
                        memory.take(tile),
                        memory.take(tile)};
  result.dk.setZero();
  result.dv.setZero();
  return result;
}

/// Scores become probabilities, and `gradient` (dP) becomes dS. A row with lse -inf has no legal key, so the mask
/// zeroes whatever its exp came to.
void softmax_gradient(const Problem& problem, BackwardMemory& memory, const TileMask& mask) {
  const std::int64_t rows = memory.scores.rows();
  for (std::int64_t key = 0; key < memory.scores.cols(); ++key) {
    Column column(&memory.scores(0, key), rows);
    Column gradient(&memory.gradient(0, key), rows);
    if (problem.softcap > 0.0F) {
      Column slope(&memory.slope(0, key), rows);
      slope = (column * (1.0F / problem.softcap)).tanh();
      column = problem.softcap * slope;
      slope = 1.0F - slope * slope;
      gradient = (gradient - memory.delta) * slope;
    } else {
      gradient -= memory.delta;
    }
    column = (column - memory.lse).exp();
    mask.fill_column(key, column, 0.0F);
    gradient *= column;
  }
}

/// Returns when it is this task's turn, or when there is nothing left to keep in order.
void wait_for_turn(const BackwardTask& task, const std::atomic<std::int32_t>& done, std::int32_t turn) {
  while (done.load(std::memory_order_acquire) != turn && !task.failed->load(std::memory_order_relaxed))
    std::this_thread::yield();
}

/// A query block that a task meets: its class, and its turn among the contributions to the block's dQ.
struct QueryBlock {
  std::int32_t index = 0;
  BlockClass block_class = BlockClass::partial;
  std::int32_t turn = 0;
};

void add_query_block(const Problem& problem, const BackwardTask& task, const BackwardHead& head,
                     const QueryBlock& query_block, BackwardMemory& memory, const Tokens& keys, const Tokens& values) {
  const std::int64_t rows = problem.query_rows_in(query_block.index);
  const std::int64_t first = std::int64_t{query_block.index} * problem.block;
  if (rows > 0) {
    const Tokens queries = load_tokens(head.q, first, rows, problem.head_dim, memory.queries);
    const Tokens douts = load_tokens(head.dout, first, rows, problem.head_dim, memory.douts);
    load_scalars(head.lse, first, rows, memory.lse.data());
    load_scalars(head.delta, first, rows, memory.delta.data());
    memory.scores.topRows(rows).noalias() = problem.scale * (queries.transpose() * keys);
    memory.gradient.topRows(rows).noalias() = douts.transpose() * values;
    const TileMask mask(problem, query_block.block_class, first, std::int64_t{task.item->block} * problem.block, rows);
    softmax_gradient(problem, memory, mask);
    memory.dv.noalias() += douts * memory.scores.topRows(rows);
    memory.dk.noalias() += problem.scale * (queries * memory.gradient.topRows(rows));
  }
  wait_for_turn(task, head.done[query_block.index], query_block.turn);
  if (rows > 0) {
    Eigen::Map<Eigen::MatrixXf> dq(head.dq + query_block.index * head.dq_stride, problem.head_dim, rows);
    dq.noalias() += problem.scale * (keys * memory.gradient.topRows(rows).transpose());
  }
  head.done[query_block.index].store(query_block.turn + 1, std::memory_order_release);
}

void add_into(const HeadView& target, std::int64_t first, const Tile& sums) {
  for (std::int64_t row = 0; row < sums.cols(); ++row)
    Eigen::Map<Eigen::VectorXf>(reinterpret_cast<float*>(element(target, first + row)), sums.rows()) += sums.col(row);
}

}  // namespace

void backward(const Problem& problem, const BackwardTask& task, float* scratch) {
  const std::int64_t first_key = std::int64_t{task.item->block} * problem.block;
  const std::int64_t num_keys = problem.key_valid[task.item->block];
  BackwardMemory memory = make_memory(problem, num_keys, scratch);
  const Tokens keys = load_tokens(task.k, first_key, num_keys, problem.head_dim, memory.keys);
  const Tokens values = load_tokens(task.v, first_key, num_keys, problem.head_dim, memory.values);
  for (std::int32_t h = 0; h < task.num_heads; ++h) {
    const std::int32_t* turn = task.turns;
    for (std::int64_t r = task.item->run_begin; r < task.item->run_begin + task.item->run_count; ++r) {
      const Run& run = problem.runs[r];
      for (std::int32_t block = run.begin; block < run.end; ++block)
        add_query_block(problem, task, task.heads[h], {block, run.block_class, *turn++}, memory, keys, values);
    }
  }
  add_into(task.dk, first_key, memory.dk);
  add_into(task.dv, first_key, memory.dv);
}

}  // namespace marble::cpu::MARBLE_CPU_LEVEL

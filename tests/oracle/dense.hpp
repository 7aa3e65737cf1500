// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Dense attention in fp64, pair by pair: slow, obvious, and the only judge of values. Nothing here is blocked,
// vectorised or shared with the library, except the mask rule itself.

#include "marble/mask.hpp"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace marble::oracle {

struct DenseProblem {
  std::vector<TokenTracks> queries;
  std::vector<TokenTracks> keys;
  MaskRule rule;
  std::int32_t kv_heads = 1;
  std::vector<std::int32_t> head_map = {0};  // query head -> key head
  std::int32_t dim = 1;
  double scale = 1.0;
  double softcap = 0.0;  // 0: none
};

/// Tensors are dense [rows][heads][dim]; lse is [rows][heads].
struct DenseForward {
  std::vector<double> out, lse;
};
/// dq_size and dk_size: Frobenius norms of the gradients' terms, P (|dP| + |delta|) scale k and q, added in quadrature.
/// Rounding errors are relative to them; the gradient itself may cancel to nothing, as in a row that sees one key.
struct DenseBackward {
  std::vector<double> dq, dk, dv;
  double dq_size = 0.0, dk_size = 0.0;
};

/// Index of the first element of a row and head.
inline std::size_t offset(std::size_t row, std::size_t head, std::size_t heads, std::int32_t dim) {
  return (row * heads + head) * static_cast<std::size_t>(dim);
}

inline double dot(const double* a, const double* b, std::int32_t count) {
  return std::transform_reduce(a, a + count, b, 0.0);
}

/// softcap * tanh(scale * q.k / softcap), and its derivative with respect to scale * q.k.
inline double score(const DenseProblem& problem, double product, double* slope = nullptr) {
  const double scaled = problem.scale * product;
  const double bent = problem.softcap > 0.0 ? std::tanh(scaled / problem.softcap) : 0.0;
  if (slope != nullptr) *slope = 1.0 - bent * bent;
  return problem.softcap > 0.0 ? problem.softcap * bent : scaled;
}

/// Calls fn(query row, query head, key head) for all of them.
inline void for_each_query(const DenseProblem& problem,
                           const std::function<void(std::size_t, std::size_t, std::size_t)>& fn) {
  for (std::size_t row = 0; row < problem.queries.size(); ++row)
    for (std::size_t head = 0; head < problem.head_map.size(); ++head)
      fn(row, head, static_cast<std::size_t>(problem.head_map[head]));
}

/// Legal keys of a query row, ascending.
inline std::vector<std::size_t> legal_keys(const DenseProblem& problem, std::size_t row) {
  std::vector<std::size_t> legal;
  for (std::size_t key = 0; key < problem.keys.size(); ++key)
    if (is_legal(problem.rule, problem.queries[row], problem.keys[key])) legal.push_back(key);
  return legal;
}

inline DenseForward dense_forward(const DenseProblem& problem, const std::vector<double>& q,
                                  const std::vector<double>& k, const std::vector<double>& v) {
  const std::size_t heads = problem.head_map.size();
  const auto kv_heads = static_cast<std::size_t>(problem.kv_heads);
  DenseForward result{std::vector<double>(q.size()), std::vector<double>(problem.queries.size() * heads)};
  for_each_query(problem, [&](std::size_t row, std::size_t head, std::size_t key_head) {
    const std::size_t query = offset(row, head, heads, problem.dim);
    double& lse = result.lse[row * heads + head];
    lse = -std::numeric_limits<double>::infinity();
    const std::vector<std::size_t> legal = legal_keys(problem, row);
    std::vector<double> scores;
    for (std::size_t key : legal)
      scores.push_back(score(problem, dot(&q[query], &k[offset(key, key_head, kv_heads, problem.dim)], problem.dim)));
    if (legal.empty()) return;
    double max = scores[0];
    for (double s : scores) max = std::max(max, s);
    double sum = 0.0;
    for (double s : scores) sum += std::exp(s - max);
    lse = max + std::log(sum);
    for (std::size_t i = 0; i < legal.size(); ++i) {
      const double p = std::exp(scores[i] - lse);
      const std::size_t at = offset(legal[i], key_head, kv_heads, problem.dim);
      for (std::size_t d = 0; d < static_cast<std::size_t>(problem.dim); ++d) result.out[query + d] += p * v[at + d];
    }
  });
  return result;
}

/// Gradients of sum(out * dout) for a given `forward`. Its out may be the rounded output that a training step keeps:
/// it enters only as delta = rowsum(out * dout).
inline DenseBackward dense_backward(const DenseProblem& problem, const std::vector<double>& q,
                                    const std::vector<double>& k, const std::vector<double>& v,
                                    const std::vector<double>& dout, const DenseForward& forward) {
  const std::size_t heads = problem.head_map.size();
  const auto kv_heads = static_cast<std::size_t>(problem.kv_heads);
  DenseBackward result{std::vector<double>(q.size()), std::vector<double>(k.size()), std::vector<double>(v.size()), 0.0,
                       0.0};
  for_each_query(problem, [&](std::size_t row, std::size_t head, std::size_t key_head) {
    const std::size_t query = offset(row, head, heads, problem.dim);
    const double delta = dot(&forward.out[query], &dout[query], problem.dim);
    const double q_square = dot(&q[query], &q[query], problem.dim);
    for (std::size_t key : legal_keys(problem, row)) {
      const std::size_t at = offset(key, key_head, kv_heads, problem.dim);
      double slope = 0.0;
      const double s = score(problem, dot(&q[query], &k[at], problem.dim), &slope);
      const double p = std::exp(s - forward.lse[row * heads + head]);
      const double dp = dot(&dout[query], &v[at], problem.dim);
      const double ds = p * (dp - delta) * slope * problem.scale;
      const double ds_size = p * (std::abs(dp) + std::abs(delta)) * problem.scale;
      result.dq_size += ds_size * ds_size * dot(&k[at], &k[at], problem.dim);
      result.dk_size += ds_size * ds_size * q_square;
      for (std::size_t d = 0; d < static_cast<std::size_t>(problem.dim); ++d) {
        result.dq[query + d] += ds * k[at + d];
        result.dk[at + d] += ds * q[query + d];
        result.dv[at + d] += p * dout[query + d];
      }
    }
  });
  result.dq_size = std::sqrt(result.dq_size);
  result.dk_size = std::sqrt(result.dk_size);
  return result;
}

}  // namespace marble::oracle

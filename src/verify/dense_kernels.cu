// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// One CTA computes a tile of 64 tokens of one head against all tokens, 64 at a time, and 64 columns of the results;
// scores are recomputed for each 64 columns, so that every product is 64 x 64 x 64 and any head dimension fits. A tile
// is left out only when is_legal is false for each of its pairs.

#include "backend/cuda/cuda_error.hpp"
#include "verify/dense_kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math_constants.h>

namespace marble::dense {
namespace {

constexpr int kTile = 64;  // tokens, and columns
constexpr int kSide = 16;  // threads along each side of a tile
constexpr int kThreads = kSide * kSide;
constexpr int kEach = kTile / kSide;  // rows, and columns, of a thread
constexpr int kPitch = kTile + 1;     // of a tile in shared memory: no two rows begin in one bank
constexpr int kSharedTiles = 3;
constexpr int kSharedBytes = kSharedTiles * kTile * kPitch * static_cast<int>(sizeof(double));

/// A thread's part of a tile.
using Part = double[kEach][kEach];

__device__ int row_of(int i) {
  return static_cast<int>(threadIdx.x) / kSide + kSide * i;
}
__device__ int column_of(int i) {
  return static_cast<int>(threadIdx.x) % kSide + kSide * i;
}

/// One head of a tensor.
struct Head {
  const float* data;
  std::int64_t row_stride;
  std::int64_t tokens;
  std::int32_t dim;

  __device__ double at(std::int64_t token, int column) const {
    return token < tokens && column < dim ? static_cast<double>(data[token * row_stride + column]) : 0.0;
  }
};

__device__ Head head_of(const DeviceProblem& p, const float* tensor, std::int32_t heads, std::int32_t head) {
  return {tensor + std::int64_t{head} * p.dim, std::int64_t{heads} * p.dim, p.tokens, p.dim};
}

/// Rows [first, first + 64) and columns [column, column + 64) into shared memory, zeros where there are none.
__device__ void load(double* tile, const Head& head, std::int64_t first, int column) {
  for (int e = static_cast<int>(threadIdx.x); e < kTile * kTile; e += kThreads)
    tile[e / kTile * kPitch + e % kTile] = head.at(first + e / kTile, column + e % kTile);
}

/// sum += a b^T
__device__ void add_product_transposed(Part& sum, const double* a, const double* b) {
#pragma unroll 2
  for (int d = 0; d < kTile; ++d) {
    double x[kEach], y[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = a[row_of(i) * kPitch + d];
#pragma unroll
    for (int i = 0; i < kEach; ++i) y[i] = b[column_of(i) * kPitch + d];
#pragma unroll
    for (int r = 0; r < kEach; ++r)
#pragma unroll
      for (int c = 0; c < kEach; ++c) sum[r][c] += x[r] * y[c];
  }
}

/// sum += a b
__device__ void add_product(Part& sum, const double* a, const double* b) {
#pragma unroll 2
  for (int d = 0; d < kTile; ++d) {
    double x[kEach], y[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = a[row_of(i) * kPitch + d];
#pragma unroll
    for (int i = 0; i < kEach; ++i) y[i] = b[d * kPitch + column_of(i)];
#pragma unroll
    for (int r = 0; r < kEach; ++r)
#pragma unroll
      for (int c = 0; c < kEach; ++c) sum[r][c] += x[r] * y[c];
  }
}

struct Shared {
  double *a, *b, *weights;
};

__device__ Shared shared_tiles() {
  extern __shared__ double memory[];
  return {memory, memory + kTile * kPitch, memory + 2 * kTile * kPitch};
}

/// Dot products of the rows from `row` of x with the rows from `column` of y.
__device__ void dot_products(Part& sum, const Head& x, std::int64_t row, const Head& y, std::int64_t column,
                             const Shared& shared) {
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) sum[r][c] = 0.0;
  for (int d = 0; d < x.dim; d += kTile) {
    __syncthreads();
    load(shared.a, x, row, d);
    load(shared.b, y, column, d);
    __syncthreads();
    add_product_transposed(sum, shared.a, shared.b);
  }
}

/// sum += weights y with weight(r, c) those of this thread, the rows of y from `first` and its columns from `column`.
template <typename Weight>
__device__ void add_weighted(Part& sum, Weight weight, const Head& y, std::int64_t first, int column,
                             const Shared& shared) {
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) shared.weights[row_of(r) * kPitch + column_of(c)] = weight(r, c);
  load(shared.b, y, first, column);
  __syncthreads();
  add_product(sum, shared.weights, shared.b);
}

/// One bit for each pair of this thread that is legal.
__device__ unsigned legal_pairs(const DeviceProblem& p, std::int64_t first_query, std::int64_t first_key,
                                bool rows_are_queries) {
  unsigned bits = 0;
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const std::int64_t query = first_query + (rows_are_queries ? row_of(r) : column_of(c));
      const std::int64_t key = first_key + (rows_are_queries ? column_of(c) : row_of(r));
      if (query < p.tokens && key < p.tokens && is_legal(p.rule, p.tracks[query], p.tracks[key]))
        bits |= 1U << (r * kEach + c);
    }
  return bits;
}

__device__ bool has(unsigned bits, int r, int c) {
  return (bits >> (r * kEach + c) & 1U) != 0;
}

/// What the softmax takes, from a product q.k; and its derivative.
__device__ double score(const DeviceProblem& p, double product) {
  const double scaled = product * p.scale;
  return p.softcap > 0 ? p.softcap * tanh(scaled / p.softcap) : scaled;
}
__device__ double score_slope(const DeviceProblem& p, double score) {
  const double bent = p.softcap > 0 ? score / p.softcap : 0.0;
  return p.scale * (1.0 - bent * bent);
}

/// Over the threads that share a row.
template <typename Op>
__device__ double reduce_row(double value, Op op) {
  for (int lane = kSide / 2; lane > 0; lane /= 2) value = op(value, __shfl_xor_sync(0xffffffffU, value, lane));
  return value;
}

__device__ std::int64_t first_token(int tile) {
  return std::int64_t{tile} * kTile;
}

/// This CTA's tile: late tiles see the most keys in causal packs, so they come first.
__device__ std::int64_t own_tile() {
  return first_token(static_cast<int>(gridDim.x - 1 - blockIdx.x));
}

__global__ void __launch_bounds__(kThreads) attend_kernel(DeviceProblem p) {
  const Shared shared = shared_tiles();
  const std::int64_t first = own_tile();
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.z) * kTile;
  const std::int32_t key_head = head / (p.heads / p.kv_heads);
  const Head q = head_of(p, p.q, p.heads, head);
  const Head k = head_of(p, p.k, p.kv_heads, key_head);
  const Head v = head_of(p, p.v, p.kv_heads, key_head);
  Part out{}, weights;
  double max[kEach], sum[kEach] = {};
  for (double& m : max) m = -CUDART_INF;
  for (unsigned tile = 0; tile < gridDim.x; ++tile) {
    const std::int64_t first_key = first_token(static_cast<int>(tile));
    const unsigned legal = legal_pairs(p, first, first_key, true);
    if (__syncthreads_or(static_cast<int>(legal)) == 0) continue;
    dot_products(weights, q, first, k, first_key, shared);
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      double largest = max[r];
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        weights[r][c] = has(legal, r, c) ? score(p, weights[r][c]) : -CUDART_INF;
        largest = fmax(largest, weights[r][c]);
      }
      largest = reduce_row(largest, [](double x, double y) { return fmax(x, y); });
      // A row that has seen no legal key keeps max -inf, and no difference of infinities may arise.
      const double shift = largest == -CUDART_INF ? 0.0 : largest;
      const double factor = exp(max[r] - shift);
      max[r] = largest;
      double added = 0.0;
#pragma unroll
      for (int c = 0; c < kEach; ++c) added += weights[r][c] = exp(weights[r][c] - shift);
      sum[r] = sum[r] * factor + reduce_row(added, [](double x, double y) { return x + y; });
#pragma unroll
      for (int c = 0; c < kEach; ++c) out[r][c] *= factor;
    }
    add_weighted(
        out, [&](int r, int c) { return weights[r][c]; }, v, first_key, column, shared);
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const std::int64_t row = (first + row_of(r)) * p.heads + head;
    if (first + row_of(r) >= p.tokens) continue;
    if (column == 0 && column_of(0) == 0) p.lse[row] = max[r] + log(sum[r]);
#pragma unroll
    for (int c = 0; c < kEach; ++c)
      if (column + column_of(c) < p.dim)
        p.out[row * p.dim + column + column_of(c)] = sum[r] > 0 ? out[r][c] / sum[r] : 0.0;
  }
}

__device__ double round_once(double value, DType dtype) {
  const auto rounded = static_cast<float>(value);
  if (dtype == DType::bf16) return static_cast<double>(__bfloat162float(__float2bfloat16_rn(rounded)));
  if (dtype == DType::fp16) return static_cast<double>(__half2float(__float2half_rn(rounded)));
  return static_cast<double>(rounded);
}

/// One thread for each row and head.
__global__ void delta_kernel(DeviceProblem p) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= p.tokens * p.heads) return;
  double delta = 0.0, change = 0.0;
  for (std::int64_t e = row * p.dim; e < (row + 1) * p.dim; ++e) {
    const auto dout = static_cast<double>(p.dout[e]);
    delta += p.out[e] * dout;
    change += (round_once(p.out[e], p.dtype) - p.out[e]) * dout;
  }
  p.delta[row] = delta;
  p.delta_change[row] = change;
}

/// Statistics of one query row.
struct Row {
  double lse, delta, delta_change;
};

__device__ Row row_at(const DeviceProblem& p, std::int64_t query, std::int32_t head) {
  if (query >= p.tokens) return {};
  const std::int64_t row = query * p.heads + head;
  return {p.lse[row], p.delta[row], p.delta_change[row]};
}

__global__ void __launch_bounds__(kThreads) query_gradient_kernel(DeviceProblem p) {
  const Shared shared = shared_tiles();
  const std::int64_t first = own_tile();
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.z) * kTile;
  const std::int32_t key_head = head / (p.heads / p.kv_heads);
  const Head q = head_of(p, p.q, p.heads, head);
  const Head dout = head_of(p, p.dout, p.heads, head);
  const Head k = head_of(p, p.k, p.kv_heads, key_head);
  const Head v = head_of(p, p.v, p.kv_heads, key_head);
  Part dq{}, change{}, scores, dp;
  for (unsigned tile = 0; tile < gridDim.x; ++tile) {
    const std::int64_t first_key = first_token(static_cast<int>(tile));
    const unsigned legal = legal_pairs(p, first, first_key, true);
    if (__syncthreads_or(static_cast<int>(legal)) == 0) continue;
    dot_products(scores, q, first, k, first_key, shared);
    dot_products(dp, dout, first, v, first_key, shared);
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const Row row = row_at(p, first + row_of(r), head);
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        const double s = score(p, scores[r][c]);
        const double slope = has(legal, r, c) ? exp(s - row.lse) * score_slope(p, s) : 0.0;
        dp[r][c] = slope * (dp[r][c] - row.delta);
        scores[r][c] = -slope * row.delta_change;
      }
    }
    add_weighted(
        dq, [&](int r, int c) { return dp[r][c]; }, k, first_key, column, shared);
    add_weighted(
        change, [&](int r, int c) { return scores[r][c]; }, k, first_key, column, shared);
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const std::int64_t query = first + row_of(r);
      if (query >= p.tokens || column + column_of(c) >= p.dim) continue;
      const std::int64_t e = (query * p.heads + head) * p.dim + column + column_of(c);
      p.dq[e] = dq[r][c];
      p.dq_stored[e] = static_cast<float>(dq[r][c] + change[r][c]);
    }
}

__global__ void __launch_bounds__(kThreads) key_gradient_kernel(DeviceProblem p) {
  const Shared shared = shared_tiles();
  const std::int64_t first = own_tile();
  const auto key_head = static_cast<std::int32_t>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.z) * kTile;
  const std::int32_t group = p.heads / p.kv_heads;
  const Head k = head_of(p, p.k, p.kv_heads, key_head);
  const Head v = head_of(p, p.v, p.kv_heads, key_head);
  Part dk{}, dv{}, change{}, scores, dp;
  for (unsigned tile = 0; tile < gridDim.x; ++tile) {
    const std::int64_t first_query = first_token(static_cast<int>(tile));
    const unsigned legal = legal_pairs(p, first_query, first, false);
    if (__syncthreads_or(static_cast<int>(legal)) == 0) continue;
    for (std::int32_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const Head q = head_of(p, p.q, p.heads, head);
      const Head dout = head_of(p, p.dout, p.heads, head);
      dot_products(scores, k, first, q, first_query, shared);
      dot_products(dp, v, first, dout, first_query, shared);
      const auto row = [&](int c) { return row_at(p, first_query + column_of(c), head); };
      // Probabilities go into the product at once, and their slopes take the scores' place: registers are scarce.
      const auto probability = [&](int r, int c) {
        const double s = score(p, scores[r][c]);
        const double weight = has(legal, r, c) ? exp(s - row(c).lse) : 0.0;
        scores[r][c] = weight * score_slope(p, s);
        return weight;
      };
      add_weighted(dv, probability, dout, first_query, column, shared);
      add_weighted(
          dk, [&](int r, int c) { return scores[r][c] * (dp[r][c] - row(c).delta); }, q, first_query, column, shared);
      add_weighted(
          change, [&](int r, int c) { return -scores[r][c] * row(c).delta_change; }, q, first_query, column, shared);
    }
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const std::int64_t key = first + row_of(r);
      if (key >= p.tokens || column + column_of(c) >= p.dim) continue;
      const std::int64_t e = (key * p.kv_heads + key_head) * p.dim + column + column_of(c);
      p.dk[e] = dk[r][c];
      p.dv[e] = dv[r][c];
      p.dk_stored[e] = static_cast<float>(dk[r][c] + change[r][c]);
    }
}

int tiles(std::int64_t count) {
  return static_cast<int>((count + kTile - 1) / kTile);
}

template <typename Kernel>
void launch_tiles(Kernel kernel, const DeviceProblem& problem, std::int32_t heads, const char* what) {
  cuda::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), what);
  const dim3 grid(static_cast<unsigned>(tiles(problem.tokens)), static_cast<unsigned>(heads),
                  static_cast<unsigned>(tiles(problem.dim)));
  kernel<<<grid, kThreads, kSharedBytes>>>(problem);
  cuda::check_cuda(cudaGetLastError(), what);
}

}  // namespace

void launch_attend(const DeviceProblem& problem) {
  launch_tiles(attend_kernel, problem, problem.heads, "starting the reference's forward kernel");
}

void launch_delta(const DeviceProblem& problem) {
  const std::int64_t rows = problem.tokens * problem.heads;
  delta_kernel<<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads>>>(problem);
  cuda::check_cuda(cudaGetLastError(), "starting the reference's delta kernel");
}

void launch_query_gradient(const DeviceProblem& problem) {
  launch_tiles(query_gradient_kernel, problem, problem.heads, "starting the reference's query gradient kernel");
}

void launch_key_gradient(const DeviceProblem& problem) {
  launch_tiles(key_gradient_kernel, problem, problem.kv_heads, "starting the reference's key gradient kernel");
}

}  // namespace marble::dense

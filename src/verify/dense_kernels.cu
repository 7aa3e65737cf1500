// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// One CTA computes a tile of 64 tokens of one head against all tokens, 64 at a time, and 64 columns of the results;
// scores are recomputed for each 64 columns, so that every product is 64 x 64 x 64 and any head dimension fits.
// Products run on the tensor cores, whose fp64 is IEEE's. A tile is left out only when is_legal is false for each of
// its pairs.

#include "backend/cuda/cuda_error.hpp"
#include "verify/dense_kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math_constants.h>

namespace marble::dense {
namespace {

constexpr int kTile = 64;          // tokens, and columns
constexpr int kThreads = 256;      // a warp has 8 rows of a tile, four threads a row
constexpr int kEach = 16;          // columns of a thread, two of every eight
constexpr int kPitch = kTile + 4;  // of a tile in shared memory: 4 rows and 4 columns of one lie in 16 banks of 8 bytes
constexpr int kSharedTiles = 3;
constexpr int kSharedBytes = kSharedTiles * kTile * kPitch * static_cast<int>(sizeof(double));

/// A thread's part of a tile: of one row.
using Part = double[kEach];

__device__ int own_row() {
  return static_cast<int>(threadIdx.x) / 4;
}
__device__ int own_column(int i) {
  return i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
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

/// Eight columns of this warp's rows: sum += x y, with four of the terms. A thread has two columns of the sum, one term
/// of its row of x, and one of column threadIdx.x % 32 / 4 of y; both are term threadIdx.x % 4.
__device__ void add_terms(double& sum0, double& sum1, double x, double y) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(sum0), "+d"(sum1)
      : "d"(x), "d"(y));
}

/// sum += a y, where y(term, column) lies at b[term * kTermStride + column * kColumnStride].
template <int kTermStride, int kColumnStride>
__device__ void add_product_of(Part& sum, const double* a, const double* b) {
  const int term = static_cast<int>(threadIdx.x) % 4;
  const int column = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll 4
  for (int first = 0; first < kTile; first += 4) {
    const double x = a[own_row() * kPitch + first + term];
#pragma unroll
    for (int i = 0; i < kEach; i += 2)
      add_terms(sum[i], sum[i + 1], x, b[(first + term) * kTermStride + (i * 4 + column) * kColumnStride]);
  }
}

/// sum += a b^T
__device__ void add_product_transposed(Part& sum, const double* a, const double* b) {
  add_product_of<1, kPitch>(sum, a, b);
}

/// sum += a b
__device__ void add_product(Part& sum, const double* a, const double* b) {
  add_product_of<kPitch, 1>(sum, a, b);
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
  for (double& s : sum) s = 0.0;
  for (int d = 0; d < x.dim; d += kTile) {
    __syncthreads();
    load(shared.a, x, row, d);
    load(shared.b, y, column, d);
    __syncthreads();
    add_product_transposed(sum, shared.a, shared.b);
  }
}

/// sum += weights y with weight(c) those of this thread, the rows of y from `first` and its columns from `column`.
template <typename Weight>
__device__ void add_weighted(Part& sum, Weight weight, const Head& y, std::int64_t first, int column,
                             const Shared& shared) {
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kEach; ++c) shared.weights[own_row() * kPitch + own_column(c)] = weight(c);
  load(shared.b, y, first, column);
  __syncthreads();
  add_product(sum, shared.weights, shared.b);
}

/// One bit for each pair of this thread that is legal.
__device__ unsigned legal_pairs(const DeviceProblem& p, std::int64_t first_query, std::int64_t first_key,
                                bool rows_are_queries) {
  unsigned bits = 0;
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    const std::int64_t query = first_query + (rows_are_queries ? own_row() : own_column(c));
    const std::int64_t key = first_key + (rows_are_queries ? own_column(c) : own_row());
    if (query < p.tokens && key < p.tokens && is_legal(p.rule, p.tracks[query], p.tracks[key])) bits |= 1U << c;
  }
  return bits;
}

__device__ bool has(unsigned bits, int c) {
  return (bits >> c & 1U) != 0;
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
  for (int lane = 2; lane > 0; lane /= 2) value = op(value, __shfl_xor_sync(0xffffffffU, value, lane));
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
  double max = -CUDART_INF, sum = 0.0;
  for (unsigned tile = 0; tile < gridDim.x; ++tile) {
    const std::int64_t first_key = first_token(static_cast<int>(tile));
    const unsigned legal = legal_pairs(p, first, first_key, true);
    if (__syncthreads_or(static_cast<int>(legal)) == 0) continue;
    dot_products(weights, q, first, k, first_key, shared);
    double largest = max;
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      weights[c] = has(legal, c) ? score(p, weights[c]) : -CUDART_INF;
      largest = fmax(largest, weights[c]);
    }
    largest = reduce_row(largest, [](double x, double y) { return fmax(x, y); });
    // A row that has seen no legal key keeps max -inf, and no difference of infinities may arise.
    const double shift = largest == -CUDART_INF ? 0.0 : largest;
    const double factor = exp(max - shift);
    max = largest;
    double added = 0.0;
#pragma unroll
    for (double& weight : weights) added += weight = exp(weight - shift);
    sum = sum * factor + reduce_row(added, [](double x, double y) { return x + y; });
#pragma unroll
    for (double& o : out) o *= factor;
    add_weighted(
        out, [&](int c) { return weights[c]; }, v, first_key, column, shared);
  }
  if (first + own_row() >= p.tokens) return;
  const std::int64_t row = (first + own_row()) * p.heads + head;
  if (column == 0 && own_column(0) == 0) p.lse[row] = max + log(sum);
#pragma unroll
  for (int c = 0; c < kEach; ++c)
    if (column + own_column(c) < p.dim) p.out[row * p.dim + column + own_column(c)] = sum > 0 ? out[c] / sum : 0.0;
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
  const Row row = row_at(p, first + own_row(), head);
  for (unsigned tile = 0; tile < gridDim.x; ++tile) {
    const std::int64_t first_key = first_token(static_cast<int>(tile));
    const unsigned legal = legal_pairs(p, first, first_key, true);
    if (__syncthreads_or(static_cast<int>(legal)) == 0) continue;
    dot_products(scores, q, first, k, first_key, shared);
    dot_products(dp, dout, first, v, first_key, shared);
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const double s = score(p, scores[c]);
      const double slope = has(legal, c) ? exp(s - row.lse) * score_slope(p, s) : 0.0;
      dp[c] = slope * (dp[c] - row.delta);
      scores[c] = -slope * row.delta_change;
    }
    add_weighted(
        dq, [&](int c) { return dp[c]; }, k, first_key, column, shared);
    add_weighted(
        change, [&](int c) { return scores[c]; }, k, first_key, column, shared);
  }
  if (first + own_row() >= p.tokens) return;
  const std::int64_t begin = ((first + own_row()) * p.heads + head) * p.dim + column;
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    if (column + own_column(c) >= p.dim) continue;
    p.dq[begin + own_column(c)] = dq[c];
    p.dq_stored[begin + own_column(c)] = static_cast<float>(dq[c] + change[c]);
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
      const auto row = [&](int c) { return row_at(p, first_query + own_column(c), head); };
      // Probabilities go into the product at once, and their slopes take the scores' place: registers are scarce.
      const auto probability = [&](int c) {
        const double s = score(p, scores[c]);
        const double weight = has(legal, c) ? exp(s - row(c).lse) : 0.0;
        scores[c] = weight * score_slope(p, s);
        return weight;
      };
      add_weighted(dv, probability, dout, first_query, column, shared);
      add_weighted(
          dk, [&](int c) { return scores[c] * (dp[c] - row(c).delta); }, q, first_query, column, shared);
      add_weighted(
          change, [&](int c) { return -scores[c] * row(c).delta_change; }, q, first_query, column, shared);
    }
  }
  if (first + own_row() >= p.tokens) return;
  const std::int64_t begin = ((first + own_row()) * p.kv_heads + key_head) * p.dim + column;
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    if (column + own_column(c) >= p.dim) continue;
    p.dk[begin + own_column(c)] = dk[c];
    p.dv[begin + own_column(c)] = dv[c];
    p.dk_stored[begin + own_column(c)] = static_cast<float>(dk[c] + change[c]);
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

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// The backward pass for GPUs, head dimensions and strides that the Hopper kernel does not take. It is made to be right,
// not fast: fp32 throughout, a thread a pair. One CTA owns 16 keys of a (key head, item), so their gradients have one
// owner and a planned order; gradients of queries are added atomically, in turn if they have a planned order too.

#include "backend/cuda/attention_backward.hpp"
#include "backend/cuda/backward_traits.hpp"
#include "backend/cuda/backward_walk.hpp"
#include "backend/cuda/cuda_error.hpp"
#include "backend/cuda/planned_order.hpp"
#include "backend/cuda/ptx_bulk.cuh"

#include <type_traits>

namespace marble::cuda {
namespace {

constexpr int kTile = 16;
constexpr int kKeyTiles = kBlock / kTile;
constexpr int kThreads = kTile * kTile;
constexpr int kArrays = 6;

/// Rows of `kTile` floats each, padded so that a column's elements meet different banks.
struct PlainShared {
  float* keys;
  float* values;
  float* queries;
  float* douts;
  float* dk;
  float* dv;
  int pitch;

  __device__ PlainShared(float* memory, int head_dim) : pitch(head_dim + 1) {
    float** arrays[kArrays] = {&keys, &values, &queries, &douts, &dk, &dv};
    for (int i = 0; i < kArrays; ++i) *arrays[i] = memory + i * kTile * pitch;
  }
};

template <typename T>
__device__ void load_rows(float* target, int pitch, const StridedRows& source, int head, int first, int valid_rows,
                          int head_dim) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    const T* data = static_cast<const T*>(source.data);
    target[row * pitch + column] =
        first + row < valid_rows
            ? static_cast<float>(data[(first + row) * source.row_stride + head * source.head_stride + column])
            : 0.f;
  }
}

__device__ float row_product(const float* a, const float* b, int count) {
  float sum = 0.f;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

__device__ bool is_visible(const VisibilityArrays& visibility, int query_row, int key_row) {
  if (visibility.key_intervals != nullptr) {
    const RowInterval interval = visibility.key_intervals[key_row];
    return interval.lo <= query_row && query_row < interval.hi;
  }
  const auto tokens = [](const RowTracks& row) {
    return TokenTracks{row.sample, row.segment, row.noise, row.position};
  };
  const RowTracks key = visibility.key_tracks[key_row];
  return key.sample >= 0 && is_legal(visibility.rule, tokens(visibility.query_tracks[query_row]), tokens(key));
}

/// P and dS of one pair, dS before the softmax scale.
__device__ float2 pair_weights(const BackwardParams& params, float score, float gradient, std::int64_t statistics) {
  const float lse = params.lse[statistics];
  gradient += params.minus_delta[statistics];
  if (!params.has_softcap) {
    const float weight = exp2_approx(score * params.exponent_scale - lse);
    return {weight, weight * gradient};
  }
  const float capped = tanhf(score * params.score_scale);
  const float weight = exp2_approx(capped * params.exponent_scale - lse);
  return {weight, weight * gradient * (1.f - capped * capped)};
}

/// sums[i][d] += sum over r of weights[r][i] * rows[r][d], for `kTile` rows of each.
__device__ void add_products(float* sums, const float (&weights)[kTile][kTile + 1], const float* rows, int pitch,
                             int head_dim) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    float sum = 0.f;
    for (int r = 0; r < kTile; ++r) sum += weights[r][row] * rows[r * pitch + column];
    sums[row * pitch + column] += sum;
  }
}

template <int kDim>
__device__ void add_dq(float* block, const float (&score_gradients)[kTile][kTile + 1], const PlainShared& shared,
                       int first_row, int head_dim) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    float sum = 0.f;
    for (int key = 0; key < kTile; ++key) sum += score_gradients[row][key] * shared.keys[key * shared.pitch + column];
    atomicAdd(&block[dq_index<kDim>(first_row + row, column)], sum);
  }
}

__device__ void add_into(const StridedRows& target, const float* sums, int pitch, int head, int first, int valid_rows,
                         int head_dim, float scale) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim;
    const int column = i % head_dim;
    if (first + row >= valid_rows) continue;
    float* data = static_cast<float*>(target.data);
    data[(first + row) * target.row_stride + head * target.head_stride + column] += sums[row * pitch + column] * scale;
  }
}

/// Units are drawn in the order of the work array, as a planned order of dQ sums asks.
__device__ BackwardUnit draw_unit(const BackwardParams& params) {
  __shared__ int index;
  if (threadIdx.x == 0) index = atomicAdd(params.counter, 1);
  __syncthreads();
  return backward_unit_at(params, kKeyTiles, index);
}

/// One CTA's keys, and the pairs of weights at hand.
template <typename T, int kDim>
class PlainBackward {
 public:
  __device__ PlainBackward(const BackwardParams& params, const PlainShared& shared, const BackwardUnit& unit)
      : params_(params),
        shared_(shared),
        item_(params.items[unit.item]),
        unit_(unit),
        first_key_(item_.block * kBlock + unit.key_tile * kTile) {}

  __device__ void run() {
    if (first_key_ >= params_.valid_key_rows) return;
    load_rows<T>(shared_.keys, shared_.pitch, params_.k, unit_.key_head, first_key_, params_.valid_key_rows, dim());
    load_rows<T>(shared_.values, shared_.pitch, params_.v, unit_.key_head, first_key_, params_.valid_key_rows, dim());
    for (int i = threadIdx.x; i < kTile * shared_.pitch; i += kThreads) shared_.dk[i] = shared_.dv[i] = 0.f;
    for (int h = params_.group_begin[unit_.key_head]; h < params_.group_begin[unit_.key_head + 1]; ++h) {
      int place = 0;
      for (int r = 0; r < item_.run_count; ++r) {
        const Run run = params_.runs[item_.run_begin + r];
        for (int block = run.begin; block < run.end; ++block)
          attend_block(params_.group_heads[h], block, run.block_class == BlockClass::full, place++);
      }
    }
    __syncthreads();
    add_into(params_.dk, shared_.dk, shared_.pitch, unit_.key_head, first_key_, params_.valid_key_rows, dim(),
             params_.gradient_scale);
    add_into(params_.dv, shared_.dv, shared_.pitch, unit_.key_head, first_key_, params_.valid_key_rows, dim(), 1.f);
  }

 private:
  __device__ int dim() const { return params_.head_dim; }

  /// `place` counts the item's blocks.
  __device__ void attend_block(int head, int block, bool is_full, int place) {
    std::int32_t* turns = params_.order.query_turns;
    Turn turn = {};
    if (turns != nullptr) {
      turns += head * params_.num_blocks + block;
      const std::int32_t rank = params_.order.ranks[params_.order.item_begin[unit_.item] + place];
      turn = planned_turn(rank, unit_.key_tile, kKeyTiles,
                          unit_.key_tile == kKeyTiles - 1 || first_key_ + kTile >= params_.valid_key_rows);
      if (threadIdx.x == 0) wait_turn(turns, turn.begin);
    }
    const int end = min((block + 1) * kBlock, params_.valid_query_rows);
    for (int row = block * kBlock; row < end; row += kTile) attend_rows(head, row, is_full);
    if (turns != nullptr) {
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) pass_turn(turns, turn.end);
    }
  }

  __device__ void attend_rows(int head, int first_row, bool is_full) {
    __shared__ float weights[kTile][kTile + 1], score_gradients[kTile][kTile + 1];
    const int query = threadIdx.x / kTile;
    const int key = threadIdx.x % kTile;
    const int pitch = shared_.pitch;
    const std::int64_t rows_of_head = std::int64_t{head} * params_.num_blocks * kBlock;
    __syncthreads();
    load_rows<T>(shared_.queries, pitch, params_.q, head, first_row, params_.valid_query_rows, dim());
    load_rows<T>(shared_.douts, pitch, params_.dout, head, first_row, params_.valid_query_rows, dim());
    __syncthreads();
    const float score = row_product(shared_.queries + query * pitch, shared_.keys + key * pitch, dim());
    const float gradient = row_product(shared_.douts + query * pitch, shared_.values + key * pitch, dim());
    float2 pair = {0.f, 0.f};
    if (first_row + query < params_.valid_query_rows && first_key_ + key < params_.valid_key_rows &&
        (is_full || is_visible(params_.visibility, first_row + query, first_key_ + key)))
      pair = pair_weights(params_, score, gradient, rows_of_head + first_row + query);
    weights[query][key] = pair.x;
    score_gradients[query][key] = pair.y;
    __syncthreads();
    add_products(shared_.dv, weights, shared_.douts, pitch, dim());
    add_products(shared_.dk, score_gradients, shared_.queries, pitch, dim());
    float* block = params_.dq + (rows_of_head + first_row / kBlock * kBlock) * kDim;
    add_dq<kDim>(block, score_gradients, shared_, first_row % kBlock, dim());
  }

  const BackwardParams& params_;
  const PlainShared& shared_;
  const Item item_;
  const BackwardUnit unit_;
  const int first_key_;
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attention_backward_plain_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ float memory[];
  PlainBackward<T, kDim>(params, PlainShared(memory, params.head_dim), draw_unit(params)).run();
}

template <typename T, int kDim>
void launch(const BackwardParams& params, cudaStream_t stream) {
  const auto kernel = attention_backward_plain_kernel<T, kDim>;
  const int shared_bytes = kArrays * kTile * (params.head_dim + 1) * static_cast<int>(sizeof(float));
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "reserving shared memory for the plain attention backward kernel");
  const auto num_units = static_cast<unsigned>(std::int64_t{params.num_kv_heads} * params.num_items * kKeyTiles);
  kernel<<<num_units, kThreads, static_cast<std::size_t>(shared_bytes), stream>>>(params);
  check_cuda(cudaGetLastError(), "launching the plain attention backward kernel");
}

}  // namespace

void launch_attention_backward_plain(const BackwardParams& params, DType dtype, int dim, cudaStream_t stream) {
  const auto with_type = [&]<typename T>(T) {
    if (dim == 64) return launch<T, 64>(params, stream);
    if (dim == 128) return launch<T, 128>(params, stream);
    launch<T, 256>(params, stream);
  };
  if (dtype == DType::bf16) return with_type(__nv_bfloat16{});
  with_type(__half{});
}

}  // namespace marble::cuda

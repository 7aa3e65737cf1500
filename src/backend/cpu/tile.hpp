// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pieces of a tile's arithmetic that both passes share. Included only by the files that are compiled once per processor
// level, each in a namespace of its own (MARBLE_CPU_LEVEL).

#include "backend/cpu/kernels.hpp"
#include "base/numeric.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <limits>

namespace marble::cpu::MARBLE_CPU_LEVEL {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Tile = Eigen::Map<Eigen::MatrixXf, Eigen::Aligned64>;
using Column = Eigen::Map<Eigen::ArrayXf, Eigen::Aligned64>;

/// Rows of a tensor as a matrix: entry (i, row) of `dim` x `rows`, columns `stride` floats apart.
using Tokens = Eigen::Map<const Eigen::MatrixXf, Eigen::Unaligned, Eigen::OuterStride<>>;

void convert(const void* source, DType source_type, void* target, DType target_type, std::int64_t count);
void forward(const Problem& problem, const ForwardTask& task, float* scratch);
void backward(const Problem& problem, const BackwardTask& task, float* scratch);

/// Hands out 64-byte aligned pieces of a task's memory.
class Scratch {
 public:
  explicit Scratch(float* memory) : next_(memory) {}
  float* take(std::int64_t floats) {
    float* piece = next_;
    next_ += (floats + 15) / 16 * 16;
    return piece;
  }

 private:
  float* next_;
};

inline std::byte* element(const HeadView& view, std::int64_t row) {
  return static_cast<std::byte*>(view.data) + row * view.row_stride * size_of(view.dtype);
}

/// `rows` valid rows from `first`: in place when they are fp32, else converted into `buffer`.
inline Tokens load_tokens(const HeadView& view, std::int64_t first, std::int64_t rows, std::int32_t dim,
                          float* buffer) {
  if (view.dtype == DType::fp32)
    return {reinterpret_cast<const float*>(element(view, first)), dim, rows, Eigen::OuterStride<>(view.row_stride)};
  for (std::int64_t row = 0; row < rows; ++row)
    convert(element(view, first + row), view.dtype, buffer + row * dim, DType::fp32, dim);
  return {buffer, dim, rows, Eigen::OuterStride<>(dim)};
}

/// The per-row scalars of `rows` rows from `first`, into an aligned vector.
inline void load_scalars(const HeadView& view, std::int64_t first, std::int64_t rows, float* target) {
  const auto* source = reinterpret_cast<const float*>(element(view, first));
  for (std::int64_t row = 0; row < rows; ++row) target[row] = source[row * view.row_stride];
}

/// Writes `value` into every pair of a partial tile that the mask forbids. `tile` holds all rows of a column.
class TileMask {
 public:
  TileMask(const Problem& problem, BlockClass block_class, std::int64_t first_query, std::int64_t first_key,
           std::int64_t rows)
      : problem_(problem),
        partial_(block_class == BlockClass::partial),
        first_query_(first_query),
        first_key_(first_key),
        rows_(rows) {}

  void fill_column(std::int64_t key, Column column, float value) const {
    if (!partial_) return;
    if (!problem_.uses_tracks) {
      const RowInterval interval = problem_.intervals[first_key_ + key];
      const std::int64_t lo = std::clamp<std::int64_t>(interval.lo - first_query_, 0, rows_);
      const std::int64_t hi = std::clamp<std::int64_t>(interval.hi - first_query_, lo, rows_);
      std::fill(column.data(), column.data() + lo, value);
      std::fill(column.data() + hi, column.data() + column.size(), value);
      return;
    }
    const TokenTracks key_tracks = problem_.key_tracks[first_key_ + key];
    for (std::int64_t row = 0; row < rows_; ++row)
      column[row] =
          is_legal(problem_.rule, problem_.query_tracks[first_query_ + row], key_tracks) ? column[row] : value;
  }

 private:
  const Problem& problem_;
  bool partial_;
  std::int64_t first_query_;
  std::int64_t first_key_;
  std::int64_t rows_;
};

}  // namespace marble::cpu::MARBLE_CPU_LEVEL

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "verify/dense_tile.hpp"

#include <Eigen/Core>

#include <limits>

namespace marble::dense {
namespace {

// Tiles are column-major [rows x keys], so that work per query row runs along memory.
using RowMajor = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using Scores = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor, kTile, kTile>;
using Matrix = Eigen::Map<Eigen::MatrixXd>;
using Vector = Eigen::Map<Eigen::ArrayXd>;
using ConstVector = Eigen::Map<const Eigen::ArrayXd>;
using Mask = Eigen::Map<const Eigen::Array<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic>>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

RowMajor queries(const Tile& tile, const double* data) {
  return {data, tile.rows, tile.dim};
}
RowMajor keys(const Tile& tile, const double* data) {
  return {data, tile.keys, tile.dim};
}

Scores scores(const Tile& tile) {
  Scores s = (queries(tile, tile.q) * keys(tile, tile.k).transpose()).array() * tile.scale;
  if (tile.softcap > 0) s = (s / tile.softcap).tanh() * tile.softcap;
  return s;
}

void set_illegal(const Tile& tile, Scores& s, double value) {
  if (tile.mask == nullptr) return;
  s = (Mask(tile.mask, tile.rows, tile.keys) == 0).select(value, s);
}

/// Probabilities, the gradient of the loss with respect to q.k, and its change when delta changes.
struct Derivatives {
  Scores p, ds, ds_change;
};

Derivatives derivatives(const Tile& tile, const Gradient& gradient) {
  const Scores s = scores(tile);
  Derivatives result;
  result.p = (s.colwise() - ConstVector(gradient.lse, tile.rows)).exp();
  set_illegal(tile, result.p, 0.0);
  const Scores dp = (queries(tile, gradient.dout) * keys(tile, tile.v).transpose()).array();
  Scores slope = result.p * tile.scale;
  if (tile.softcap > 0) slope *= 1.0 - (s / tile.softcap).square();
  result.ds = slope * (dp.colwise() - ConstVector(gradient.delta, tile.rows));
  result.ds_change = slope.colwise() * -ConstVector(gradient.delta_change, tile.rows);
  return result;
}

}  // namespace

void attend(const Tile& tile, double* out_data, double* max_data, double* sum_data) {
  Matrix out(out_data, tile.rows, tile.dim);
  Vector max(max_data, tile.rows), sum(sum_data, tile.rows);
  Scores s = scores(tile);
  set_illegal(tile, s, -kInfinity);
  Eigen::ArrayXd new_max = max;
  for (std::int64_t key = 0; key < tile.keys; ++key) new_max = new_max.max(s.col(key));
  // A row that has seen no legal key keeps max -inf, and no difference of infinities may arise.
  const Eigen::ArrayXd shift = (new_max == -kInfinity).select(0.0, new_max);
  const Eigen::ArrayXd factor = (max == -kInfinity).select(0.0, (max - shift).exp());
  s = (s.colwise() - shift).exp();
  set_illegal(tile, s, 0.0);
  sum = sum * factor + s.rowwise().sum();
  out.array().colwise() *= factor;
  out.noalias() += s.matrix() * keys(tile, tile.v);
  max = new_max;
}

void add_query_gradient(const Tile& tile, const Gradient& gradient, double* dq, double* dq_change) {
  const Derivatives d = derivatives(tile, gradient);
  Matrix(dq, tile.rows, tile.dim).noalias() += d.ds.matrix() * keys(tile, tile.k);
  Matrix(dq_change, tile.rows, tile.dim).noalias() += d.ds_change.matrix() * keys(tile, tile.k);
}

void add_key_gradient(const Tile& tile, const Gradient& gradient, double* dk, double* dv, double* dk_change) {
  const Derivatives d = derivatives(tile, gradient);
  Matrix(dk, tile.keys, tile.dim).noalias() += d.ds.matrix().transpose() * queries(tile, tile.q);
  Matrix(dk_change, tile.keys, tile.dim).noalias() += d.ds_change.matrix().transpose() * queries(tile, tile.q);
  Matrix(dv, tile.keys, tile.dim).noalias() += d.p.matrix().transpose() * queries(tile, gradient.dout);
}

}  // namespace marble::dense

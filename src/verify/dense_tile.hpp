// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fp64 arithmetic of one tile of the dense reference: plain pointers in and out, since it is compiled for newer
// processors than the rest of the library.

#include <cstdint>

namespace marble::dense {

/// Rows of a tile's queries and keys, at most.
inline constexpr std::int64_t kTile = 64;

/// Inputs of a tile, row-major [rows or keys, dim]. `mask` is [keys][rows], 1 where legal; null: every pair is.
struct Tile {
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  std::int64_t dim = 0;
  double scale = 0.0;
  double softcap = 0.0;  // 0: none
  const double* q = nullptr;
  const double* k = nullptr;
  const double* v = nullptr;
  const std::uint8_t* mask = nullptr;
};

/// What the backward tiles need besides; lse and delta per query row. `delta_change` is what rounding the output adds
/// to delta: it yields gradients of its own, so that the effect can be told apart.
struct Gradient {
  const double* dout = nullptr;
  const double* lse = nullptr;
  const double* delta = nullptr;
  const double* delta_change = nullptr;
};

/// Adds the tile to the online softmax state: out [dim][rows] (unnormalised), max and sum per row.
void attend(const Tile& tile, double* out, double* max, double* sum);

/// Adds the tile's share to dq [dim][rows], and to the change of dq.
void add_query_gradient(const Tile& tile, const Gradient& gradient, double* dq, double* dq_change);

/// Adds the tile's share to dk and dv, [dim][keys], and to the change of dk.
void add_key_gradient(const Tile& tile, const Gradient& gradient, double* dk, double* dv, double* dk_change);

}  // namespace marble::dense

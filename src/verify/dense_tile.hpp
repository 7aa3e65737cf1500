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

/// What the backward tiles need besides; lse and delta per query row.
struct Gradient {
  const double* dout = nullptr;
  const double* lse = nullptr;
  const double* delta = nullptr;
};

/// Adds the tile to the online softmax state: out [dim][rows] (unnormalised), max and sum per row.
void attend(const Tile& tile, double* out, double* max, double* sum);

/// Adds the tile's share to dq [dim][rows].
void add_query_gradient(const Tile& tile, const Gradient& gradient, double* dq);

/// Adds the tile's share to dk and dv, [dim][keys].
void add_key_gradient(const Tile& tile, const Gradient& gradient, double* dk, double* dv);

}  // namespace marble::dense

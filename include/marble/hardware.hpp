// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the cost model knows of a machine: the paper's eight constants (section 04), the GPU's memory and its bandwidth,
// and the cost of a contiguous range. All are integers, so that every rank of a mesh computes the same times and makes
// the same choices. Read from a JSON file (docs/hardware.md); the H200 of data/hardware/h200.json is compiled in as the
// default.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace marble {

struct Hardware {
  std::string name = "h200";

  // Kernel throughput of one GPU over whole block pairs, masked scores included. Forward does 4 operations per score
  // and head dimension, backward 10.
  std::int64_t forward_full_gflops = 640'000;     // full block pairs
  std::int64_t forward_partial_gflops = 541'000;  // block pairs that test the mask
  std::int64_t backward_full_gflops = 585'000;
  std::int64_t backward_partial_gflops = 502'000;

  // Bandwidth of one GPU, in 10^6 bytes a second each way with both ways busy.
  std::int64_t node_mbytes_per_s = 389'000;    // to ranks of its node
  std::int64_t network_mbytes_per_s = 45'000;  // to ranks of other nodes

  /// Bytes read and written by kernels that only move them (casts, sums, packing), in 10^6 a second.
  std::int64_t memory_mbytes_per_s = 4'100'000;

  std::int64_t step_ns = 25'000;      // fixed cost of a step: launches, one hop's latency, meeting its neighbours
  std::int64_t exchange_ns = 60'000;  // fixed cost of an all-to-all, Ulysses' included

  /// The paper's tau: one more contiguous range of a rank, in one step, forward and backward. A range is a separate
  /// sequence of a varlen call there; here a full run costs what dense attention costs, so what is left is the partial
  /// blocks where a range is cut, and tau is small.
  std::int64_t range_ns = 2'000;

  std::int64_t memory_bytes = 141'000'000'000;
  std::int64_t multiprocessors = 132;  // units of a kernel that run side by side

  friend bool operator==(const Hardware&, const Hardware&) = default;
};

/// "h100" or "h200"; throws InvalidArgument naming the accepted names.
[[nodiscard]] Hardware hardware_named(std::string_view name);

/// Throws InvalidArgument naming the constant, its value and the accepted range.
void validate(const Hardware& hardware);

/// {"marble_hardware": 1, "name": ..., one member per constant, "source": {constant: where it comes from}}. Every
/// constant must be there; unknown members are refused; `source` may be absent.
[[nodiscard]] Hardware hardware_from_json(std::string_view text);
[[nodiscard]] std::string to_json(const Hardware& hardware);
[[nodiscard]] Hardware read_hardware(const std::filesystem::path& file);

}  // namespace marble

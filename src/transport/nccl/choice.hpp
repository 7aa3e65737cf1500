// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which rung all ranks take: the best that every one of them can.

#include "marble/transport.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace marble::nccl {

/// Best first. Between GPUs of one host a put is a copy, after one into its window.
inline constexpr std::array kLadder = {Rung::copy, Rung::put, Rung::sendrecv};

/// What one rank can do. Reasons are empty for what it can.
struct Capability {
  Rung wanted = Rung::automatic;
  std::string host = {};           // the same for ranks that can share memory
  std::int64_t staging_bytes = 0;  // windows have one size on all ranks
  std::string no_copy = {};        // why its copy engines cannot serve
  std::string no_put = {};         // why there is no library to put with
  std::string no_sendrecv = {};    // why there is no library to send and receive with
};

[[nodiscard]] std::string to_bytes(const Capability& capability);
[[nodiscard]] Capability capability_from(const std::string& bytes);

struct Choice {
  Rung rung = Rung::copy;
  std::string why_not_better = {};  // empty for the best
};

/// The same on every rank. `failed` says why rungs were tried in vain. Throws InvalidArgument when ranks want different
/// rungs, or one that some rank cannot take.
[[nodiscard]] Choice choose(std::span<const Capability> ranks, const std::map<Rung, std::string>& failed = {});

/// Of this host, as it has been running since it was started.
[[nodiscard]] std::string host_name();

}  // namespace marble::nccl

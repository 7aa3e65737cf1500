// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/choice.hpp"

#include "transport/nccl/wire.hpp"

#include "marble/error.hpp"

#include <fstream>
#include <unistd.h>

namespace marble::nccl {
namespace {

std::string why_no_copy(std::span<const Capability> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].no_copy.empty()) return fmt::format("rank {}: {}", rank, ranks[rank].no_copy);
    if (ranks[rank].host != ranks[0].host) return fmt::format("ranks 0 and {} are on different hosts", rank);
  }
  return {};
}

std::string why_no_sendrecv(std::span<const Capability> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (!ranks[rank].no_sendrecv.empty()) return fmt::format("rank {}: {}", rank, ranks[rank].no_sendrecv);
  return {};
}

}  // namespace

std::string to_bytes(const Capability& capability) {
  return Writer()
      .value(capability.wanted)
      .text(capability.host)
      .text(capability.no_copy)
      .text(capability.no_sendrecv)
      .take();
}

Capability capability_from(const std::string& bytes) {
  Reader reader(bytes);
  Capability capability{.wanted = reader.value<Rung>()};
  capability.host = reader.text();
  capability.no_copy = reader.text();
  capability.no_sendrecv = reader.text();
  return capability;
}

Choice choose(std::span<const Capability> ranks, const std::string& failed_copy) {
  const Rung wanted = ranks[0].wanted;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    require(ranks[rank].wanted == wanted, "rank 0 wants rung {} and rank {} wants {}", to_string(wanted), rank,
            to_string(ranks[rank].wanted));
  const std::string no_copy = failed_copy.empty() ? why_no_copy(ranks) : failed_copy,
                    no_sendrecv = why_no_sendrecv(ranks);
  if (wanted == Rung::copy) require(no_copy.empty(), "rung copy is not possible: {}", no_copy);
  if (wanted == Rung::sendrecv) {
    require(no_sendrecv.empty(), "rung sendrecv is not possible: {}", no_sendrecv);
    return {Rung::sendrecv, "rung sendrecv was asked for"};
  }
  if (no_copy.empty()) return {Rung::copy, {}};
  require(no_sendrecv.empty(), "no rung is possible: copy: {}; sendrecv: {}", no_copy, no_sendrecv);
  return {Rung::sendrecv, "copy: " + no_copy};
}

std::string host_name() {
  std::string name(256, '\0');
  gethostname(name.data(), name.size() - 1);
  name.resize(name.find('\0'));
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return name + " " + boot;
}

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/choice.hpp"

#include "transport/nccl/wire.hpp"

#include "marble/error.hpp"

#include <fstream>
#include <unistd.h>

namespace marble::nccl {
namespace {

const std::string& reason_of(const Capability& rank, Rung rung) {
  return rung == Rung::copy ? rank.no_copy : rung == Rung::put ? rank.no_put : rank.no_sendrecv;
}

/// Why not all of these ranks can take it; empty: they can.
std::string why_not(std::span<const Capability> ranks, Rung rung) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& own = reason_of(ranks[rank], rung);
    if (!own.empty()) return fmt::format("rank {}: {}", rank, own);
    if (rung == Rung::copy && ranks[rank].host != ranks[0].host)
      return fmt::format("ranks 0 and {} are on different hosts", rank);
    if (rung == Rung::put && ranks[rank].staging_bytes != ranks[0].staging_bytes)
      return fmt::format("ranks 0 and {} have {} and {} bytes of staging, and windows have one size", rank,
                         ranks[0].staging_bytes, ranks[rank].staging_bytes);
  }
  return {};
}

}  // namespace

std::string to_bytes(const Capability& capability) {
  return Writer()
      .value(capability.wanted)
      .text(capability.host)
      .value(capability.staging_bytes)
      .text(capability.no_copy)
      .text(capability.no_put)
      .text(capability.no_sendrecv)
      .take();
}

Capability capability_from(const std::string& bytes) {
  Reader reader(bytes);
  Capability capability{.wanted = reader.value<Rung>()};
  capability.host = reader.text();
  capability.staging_bytes = reader.value<std::int64_t>();
  capability.no_copy = reader.text();
  capability.no_put = reader.text();
  capability.no_sendrecv = reader.text();
  return capability;
}

Choice choose(std::span<const Capability> ranks, const std::map<Rung, std::string>& failed) {
  const Rung wanted = ranks[0].wanted;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    require(ranks[rank].wanted == wanted, "rank 0 wants rung {} and rank {} wants {}", to_string(wanted), rank,
            to_string(ranks[rank].wanted));
  const auto reason = [&](Rung rung) {
    const auto found = failed.find(rung);
    return found != failed.end() ? found->second : why_not(ranks, rung);
  };
  if (wanted != Rung::automatic) {
    const std::string why = reason(wanted);
    require(why.empty(), "rung {} is not possible: {}", to_string(wanted), why);
    return {wanted, wanted == kLadder[0] ? "" : fmt::format("rung {} was asked for", to_string(wanted))};
  }
  std::string reasons;
  for (const Rung rung : kLadder) {
    const std::string why = reason(rung);
    if (why.empty()) return {rung, reasons};
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", to_string(rung), why);
  }
  throw InvalidArgument(fmt::format("no rung is possible: {}", reasons));
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

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/environment.hpp"

#include "marble/error.hpp"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace marble::nccl {
namespace {

std::optional<std::int32_t> read_integer(const Environment& environment, const char* name) {
  const char* const text = environment(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits = text;
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  require(error == std::errc{} && end == digits.data() + digits.size() && value >= 0,
          "environment variable {} is '{}', which is not a number", name, digits);
  return value;
}

/// The first that is set: torchrun's name, or Open MPI's.
std::int32_t read_first(const Environment& environment, std::initializer_list<const char*> names,
                        std::string_view what) {
  for (const char* name : names)
    if (const auto value = read_integer(environment, name)) return *value;
  throw InvalidArgument(fmt::format("{} is not given; start with torchrun or mpirun, or set {}", what, *names.begin()));
}

std::string find_address(const Environment& environment) {
  if (const char* address = environment("MASTER_ADDR")) return address;
  const auto local = read_integer(environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
  const auto all = read_integer(environment, "OMPI_COMM_WORLD_SIZE");
  require(local && local == all, "the address of rank 0 is not given; set MASTER_ADDR");
  return "127.0.0.1";
}

std::int32_t find_port(const Environment& environment) {
  constexpr std::int32_t kTorchPort = 29'500;
  if (const auto port = read_integer(environment, "MARBLE_PORT")) return *port;
  return read_integer(environment, "MASTER_PORT").value_or(kTorchPort) + 1;
}

Rung parse_rung(std::string_view text) {
  for (const Rung rung : {Rung::automatic, Rung::copy, Rung::put, Rung::sendrecv})
    if (text == to_string(rung)) return rung;
  throw InvalidArgument(
      fmt::format("environment variable MARBLE_TRANSPORT_RUNG is '{}'; use auto, copy, put or sendrecv", text));
}

}  // namespace

NcclOptions resolve(NcclOptions options, const Environment& environment) {
  if (options.rank < 0) options.rank = read_first(environment, {"RANK", "OMPI_COMM_WORLD_RANK"}, "this process's rank");
  if (options.num_ranks < 0)
    options.num_ranks = read_first(environment, {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}, "the number of ranks");
  if (options.device < 0)
    options.device = read_first(environment, {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"}, "this rank's device");
  if (options.num_ranks > 1 && options.address.empty()) options.address = find_address(environment);
  if (options.num_ranks > 1 && options.port == 0) options.port = find_port(environment);
  if (const char* rung = environment("MARBLE_TRANSPORT_RUNG"); rung != nullptr && options.rung == Rung::automatic)
    options.rung = parse_rung(rung);
  if (const char* path = environment("MARBLE_NCCL_LIBRARY"); path != nullptr && options.nccl_library.empty())
    options.nccl_library = path;
  constexpr std::int32_t kLastPort = 65'535;
  require(options.num_ranks >= 1, "{} ranks; at least 1 is needed", options.num_ranks);
  require(options.rank >= 0 && options.rank < options.num_ranks, "rank {} is not one of {} ranks", options.rank,
          options.num_ranks);
  require(options.port >= 0 && options.port <= kLastPort, "port {} is not one of 1 to {}", options.port, kLastPort);
  require(options.time_limit.count() > 0, "time limit {} ms is not positive", options.time_limit.count());
  require(options.staging_bytes >= 0, "staging_bytes {} is negative", options.staging_bytes);
  return options;
}

}  // namespace marble::nccl

namespace marble {

NcclOptions resolve_nccl_options(const NcclOptions& options) {
  return nccl::resolve(options, [](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace marble

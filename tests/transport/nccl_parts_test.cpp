// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/choice.hpp"
#include "transport/nccl/environment.hpp"
#include "transport/nccl/staging.hpp"
#include "transport/nccl/wire.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace marble::nccl {
namespace {

using testing::HasSubstr;

Environment variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

TEST(NcclEnvironment, TorchrunsIsRead) {
  const NcclOptions options = resolve({}, variables({{"RANK", "5"},
                                                     {"WORLD_SIZE", "16"},
                                                     {"LOCAL_RANK", "1"},
                                                     {"MASTER_ADDR", "node0"},
                                                     {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(options.rank, 5);
  EXPECT_EQ(options.num_ranks, 16);
  EXPECT_EQ(options.device, 1);
  EXPECT_EQ(options.address, "node0");
  EXPECT_EQ(options.port, 29'501);  // 29500 is PyTorch's own
}

TEST(NcclEnvironment, OpenMpisIsReadAndOneHostNeedsNoAddress) {
  const NcclOptions options = resolve({}, variables({{"OMPI_COMM_WORLD_RANK", "1"},
                                                     {"OMPI_COMM_WORLD_SIZE", "2"},
                                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.num_ranks, 2);
  EXPECT_EQ(options.device, 1);
  EXPECT_EQ(options.address, "127.0.0.1");
}

TEST(NcclEnvironment, OptionsComeFirst) {
  const NcclOptions given{.rank = 0, .num_ranks = 1, .device = 3, .rung = Rung::sendrecv, .nccl_library = "/a"};
  const NcclOptions options =
      resolve(given, variables({{"RANK", "5"}, {"MARBLE_TRANSPORT_RUNG", "copy"}, {"MARBLE_NCCL_LIBRARY", "/b"}}));
  EXPECT_EQ(options.rank, 0);
  EXPECT_EQ(options.device, 3);
  EXPECT_EQ(options.rung, Rung::sendrecv);
  EXPECT_EQ(options.nccl_library, "/a");
}

TEST(NcclEnvironment, VariablesSayWhatOptionsLeaveOpen) {
  const NcclOptions given{.rank = 1, .num_ranks = 2, .device = 1, .address = "a"};
  const NcclOptions options =
      resolve(given, variables({{"MARBLE_PORT", "7"}, {"MASTER_PORT", "8"}, {"MARBLE_TRANSPORT_RUNG", "sendrecv"}}));
  EXPECT_EQ(options.port, 7);
  EXPECT_EQ(options.rung, Rung::sendrecv);
}

std::string refusal(const NcclOptions& options, std::map<std::string, std::string> values) {
  try {
    [[maybe_unused]] const NcclOptions resolved = resolve(options, variables(std::move(values)));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(NcclEnvironment, WhatIsMissingOrWrongIsNamed) {
  const NcclOptions second{.rank = 1, .num_ranks = 2, .device = 0, .address = "a", .port = 1};
  EXPECT_EQ(refusal(second, {}), "accepted");
  EXPECT_THAT(refusal({}, {}), HasSubstr("start with torchrun or mpirun, or set RANK"));
  EXPECT_THAT(refusal({.rank = 0}, {}), HasSubstr("set WORLD_SIZE"));
  EXPECT_THAT(refusal({}, {{"RANK", "x"}}), HasSubstr("RANK is 'x', which is not a number"));
  EXPECT_THAT(refusal({.rank = 2, .num_ranks = 2, .device = 0, .address = "a"}, {}),
              HasSubstr("rank 2 is not one of 2"));
  EXPECT_THAT(refusal({.rank = 0, .num_ranks = 2, .device = 0}, {}), HasSubstr("set MASTER_ADDR"));
  EXPECT_THAT(refusal(second, {{"MARBLE_TRANSPORT_RUNG", "fast"}}), HasSubstr("use auto, copy, put or sendrecv"));
}

Capability capable(std::string host) {
  return {.host = std::move(host)};
}

TEST(RungChoice, CopiesWithinAHostAndPutsBetweenHosts) {
  std::vector<Capability> ranks = {capable("a"), capable("a")};
  EXPECT_EQ(choose(ranks).rung, Rung::copy);
  EXPECT_EQ(choose(ranks).why_not_better, "");
  ranks[1].host = "b";
  const Choice choice = choose(ranks);
  EXPECT_EQ(choice.rung, Rung::put);
  EXPECT_EQ(choice.why_not_better, "copy: ranks 0 and 1 are on different hosts");
}

TEST(PossibleRungs, AreTheLadderWithoutCopiesBetweenNodes) {
  const auto rungs = [](std::int32_t num_ranks, std::int32_t ranks_per_node) {
    std::vector<Rung> result;
    for (const PossibleRung& possible : possible_rungs(num_ranks, ranks_per_node)) result.push_back(possible.rung);
    return result;
  };
  EXPECT_EQ(rungs(8, 8), (std::vector{Rung::copy, Rung::put, Rung::sendrecv}));
  EXPECT_EQ(rungs(9, 8), (std::vector{Rung::put, Rung::sendrecv}));
  EXPECT_TRUE(rungs(1, 8).empty());
}

TEST(RungChoice, OneRankThatCannotDecidesForAll) {
  std::vector<Capability> ranks = {capable("a"), capable("a"), capable("a")};
  ranks[2].no_copy = "no peer access";
  EXPECT_EQ(choose(ranks).why_not_better, "copy: rank 2: no peer access");
  ranks[1].no_put = "NCCL 2.28.9 is older than 2.29.2";
  EXPECT_EQ(choose(ranks).rung, Rung::sendrecv);
  EXPECT_EQ(choose(ranks).why_not_better,
            "copy: rank 2: no peer access; put: rank 1: NCCL 2.28.9 is older than 2.29.2");
  ranks[1].no_sendrecv = "no NCCL";
  EXPECT_THROW((void)choose(ranks), InvalidArgument);
}

TEST(RungChoice, WhatWasTriedInVainIsNotTakenAgain) {
  const std::vector<Capability> ranks = {capable("a"), capable("a")};
  const Choice choice = choose(ranks, {{Rung::copy, "rank 0: queues"}, {Rung::put, "rank 1: windows"}});
  EXPECT_EQ(choice.rung, Rung::sendrecv);
  EXPECT_EQ(choice.why_not_better, "copy: rank 0: queues; put: rank 1: windows");
}

TEST(RungChoice, WindowsHaveOneSize) {
  std::vector<Capability> ranks = {capable("a"), capable("b")};
  ranks[0].staging_bytes = 1;
  ranks[1].staging_bytes = 2;
  const Choice choice = choose(ranks);
  EXPECT_EQ(choice.rung, Rung::sendrecv);
  EXPECT_THAT(choice.why_not_better, HasSubstr("put: ranks 0 and 1 have 1 and 2 bytes of staging"));
}

TEST(RungChoice, AWishIsGrantedOrRefused) {
  std::vector<Capability> ranks = {capable("a"), capable("a")};
  for (Capability& rank : ranks) rank.wanted = Rung::sendrecv;
  EXPECT_EQ(choose(ranks).rung, Rung::sendrecv);
  for (Capability& rank : ranks) rank.wanted = Rung::copy;
  ranks[0].no_copy = "no peer access";
  EXPECT_THROW((void)choose(ranks), InvalidArgument);
  ranks[1].wanted = Rung::automatic;
  EXPECT_THROW((void)choose(ranks), InvalidArgument);
}

TEST(RungChoice, CapabilitiesTravel) {
  const Capability sent{
      .wanted = Rung::sendrecv, .host = "a b", .staging_bytes = 7, .no_copy = "c", .no_put = "d", .no_sendrecv = ""};
  const Capability read = capability_from(to_bytes(sent));
  EXPECT_EQ(read.wanted, sent.wanted);
  EXPECT_EQ(read.host, sent.host);
  EXPECT_EQ(read.staging_bytes, sent.staging_bytes);
  EXPECT_EQ(read.no_copy, sent.no_copy);
  EXPECT_EQ(read.no_put, sent.no_put);
  EXPECT_EQ(read.no_sendrecv, sent.no_sendrecv);
  EXPECT_THROW((void)capability_from(to_bytes(sent).substr(0, 20)), TransportError);
}

TEST(Staging, IsARing) {
  Staging staging(1'024);
  EXPECT_EQ(staging.take(500, 1), 0);
  EXPECT_EQ(staging.take(256, 2), 512);
  EXPECT_EQ(staging.take(300, 3), std::nullopt);
  EXPECT_EQ(staging.next_wait(), std::nullopt);  // nothing was given back
  staging.give_back(1, 7);
  EXPECT_EQ(staging.next_wait(), 7);
  staging.reclaim(6);
  EXPECT_EQ(staging.take(300, 3), std::nullopt);
  staging.reclaim(7);
  EXPECT_EQ(staging.take(300, 3), 0);             // around the end
  EXPECT_EQ(staging.take(256, 4), std::nullopt);  // 512 to 768 is taken, and so is 0 to 512
  staging.give_back(3, 8);
  staging.reclaim(8);  // the oldest is still there
  EXPECT_EQ(staging.take(256, 4), std::nullopt);
  staging.give_back(2, 9);
  staging.reclaim(9);
  EXPECT_EQ(staging.take(1'024, 5), 0);
  EXPECT_EQ(staging.take(1, 6), std::nullopt);
}

TEST(Staging, TakesWhatItsWhole) {
  Staging staging(512);
  EXPECT_EQ(staging.take(513, 1), std::nullopt);
  EXPECT_EQ(staging.take(512, 1), 0);
}

}  // namespace
}  // namespace marble::nccl

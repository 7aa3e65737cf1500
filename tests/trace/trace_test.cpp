// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// A trace holds every step, work and exchange of the ranks' plans exactly once, nested and in order.

#include "marble/trace.hpp"

#include "marble/generators.hpp"
#include "marble/plan.hpp"
#include "marble/verify.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace marble {
namespace {

using nlohmann::json;

constexpr int kStream = 0;

struct Traced {
  Plan plan;
  json events;  // those with an extent
};

Traced traced_run(const Mesh& mesh, Strategy strategy) {
  const Layout layout = generate("bagel-mix", 2048, 1);
  const Model model{.heads = 4, .kv_heads = 2, .head_dim = 16};
  VerifyOptions options;
  options.dtype = DType::fp32;
  options.threads = 2;
  options.plan = {.placement = Placement::contiguous, .strategy = strategy};
  options.plan.hardware.step_ns = 0;  // so that backward leaves own keys for the last return
  std::string events;
  options.trace = [&](std::string_view text) { events += text; };
  EXPECT_TRUE(verify_local(layout, model, mesh, options).pass);
  Traced traced{make_plan(layout, model, mesh, options.plan), json::array()};
  const json document = json::parse(trace_document(events));
  for (const json& event : document["traceEvents"])
    if (event["ph"] == "X") traced.events.push_back(event);
  return traced;
}

/// Names of a rank's events of one category inside [from, to], in the order of their beginning.
std::vector<std::string> names(const json& events, std::int32_t rank, const std::string& category, double from = -1e300,
                               double to = 1e300) {
  std::multimap<double, std::string> sorted;
  for (const json& event : events)
    if (event["pid"] == rank && event["cat"] == category && event["ts"] >= from &&
        event["ts"].get<double>() + event["dur"].get<double>() <= to)
      sorted.emplace(event["ts"], event["name"]);
  std::vector<std::string> result;
  for (const auto& [moment, name] : sorted) result.push_back(name);
  return result;
}

const json& find(const json& events, std::int32_t rank, const std::string& category, const std::string& name) {
  const json* found = nullptr;
  for (const json& event : events)
    if (event["pid"] == rank && event["cat"] == category && event["name"] == name) {
      EXPECT_EQ(found, nullptr) << name << " is there twice";
      found = &event;
    }
  if (found == nullptr) throw std::runtime_error("no event " + name);
  return *found;
}

/// Whether the exchange has a message to or from another rank; others need no transport.
bool travels(const RankPlan& plan, std::int32_t exchange) {
  if (exchange < 0) return false;
  const Exchange& entry = plan.exchanges()[static_cast<std::size_t>(exchange)];
  for (const SectionRange& range : {entry.sends, entry.recvs})
    for (std::int64_t t = range.begin; t < range.end; ++t)
      if (plan.transfers()[static_cast<std::size_t>(t)].peer != plan.header().rank) return true;
  return false;
}

void expect_pass(const json& events, const RankPlan& plan, const std::string& pass, std::span<const Step> steps) {
  const std::int32_t rank = plan.header().rank;
  const json& whole = find(events, rank, "pass", "layer 0 " + pass);
  const double begin = whole["ts"], end = begin + whole["dur"].get<double>();
  std::vector<std::string> expected_steps, expected_works, expected_exchanges;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    expected_steps.push_back(fmt::format("step {}", s));
    if (steps[s].work >= 0) expected_works.push_back(fmt::format("work {}", steps[s].work));
    if (travels(plan, steps[s].fetch)) expected_exchanges.push_back(fmt::format("layer 0 {} step {} fetch", pass, s));
    if (travels(plan, steps[s].give_back))
      expected_exchanges.push_back(fmt::format("layer 0 {} step {} return", pass, s));
  }
  EXPECT_EQ(names(events, rank, "step", begin, end), expected_steps);
  EXPECT_EQ(names(events, rank, "work", begin, end), expected_works);
  std::vector<std::string> exchanges = names(events, rank, "exchange", begin, end);
  std::sort(exchanges.begin(), exchanges.end());
  std::sort(expected_exchanges.begin(), expected_exchanges.end());
  EXPECT_EQ(exchanges, expected_exchanges);
}

class TraceTest : public testing::TestWithParam<std::tuple<std::int32_t, std::int32_t, Strategy>> {};

TEST_P(TraceTest, HoldsEveryStepWorkAndExchangeOnce) {
  const auto& [ring, ulysses, strategy] = GetParam();
  const Traced traced = traced_run({.ring = ring, .ulysses = ulysses}, strategy);
  for (std::int32_t rank = 0; rank < ring * ulysses; ++rank) {
    const RankPlan plan = make_rank_plan(traced.plan, rank);
    expect_pass(traced.events, plan, "forward", plan.forward_steps());
    expect_pass(traced.events, plan, "backward", plan.backward_steps());
    EXPECT_EQ(names(traced.events, rank, "pass"), (std::vector<std::string>{"layer 0 forward", "layer 0 backward"}));
  }
}

TEST_P(TraceTest, EventsOfATrackNest) {
  const auto& [ring, ulysses, strategy] = GetParam();
  const Traced traced = traced_run({.ring = ring, .ulysses = ulysses}, strategy);
  std::map<std::pair<int, int>, std::vector<const json*>> tracks;
  for (const json& event : traced.events) tracks[{event["pid"], event["tid"]}].push_back(&event);
  for (const auto& [track, events] : tracks) {
    std::vector<std::pair<double, double>> open;  // of events around this one; the file holds them by their beginning
    for (const json* event : events) {
      const double begin = (*event)["ts"], end = begin + (*event)["dur"].get<double>();
      while (!open.empty() && open.back().second <= begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_GE(begin, open.back().first);
        EXPECT_LE(end, open.back().second) << (*event)["name"];
        EXPECT_EQ(track.second, kStream) << "exchanges of one kind follow each other";
      }
      open.emplace_back(begin, end);
    }
  }
}

TEST_P(TraceTest, WorksLieInTheirStepsAndNextFetchesAroundThem) {
  const auto& [ring, ulysses, strategy] = GetParam();
  const Traced traced = traced_run({.ring = ring, .ulysses = ulysses}, strategy);
  const RankPlan plan = make_rank_plan(traced.plan, 0);
  const auto steps = plan.forward_steps();
  const auto extent = [](const json& event) {
    return std::pair(event["ts"].get<double>(), event["ts"].get<double>() + event["dur"].get<double>());
  };
  const auto pass = extent(find(traced.events, 0, "pass", "layer 0 forward"));
  json forward = json::array();
  for (const json& event : traced.events)
    if (event["ts"] >= pass.first && extent(event).second <= pass.second) forward.push_back(event);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const auto step = extent(find(forward, 0, "step", fmt::format("step {}", s)));
    const auto work = extent(find(forward, 0, "work", fmt::format("work {}", steps[s].work)));
    EXPECT_LE(step.first, work.first);
    EXPECT_GE(step.second, work.second);
    if (s + 1 == steps.size() || !travels(plan, steps[s + 1].fetch)) continue;
    const auto fetch = extent(find(forward, 0, "exchange", fmt::format("layer 0 forward step {} fetch", s + 1)));
    EXPECT_LE(fetch.first, work.first);
    EXPECT_GE(fetch.second, work.second);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, TraceTest,
                         testing::Values(std::tuple(1, 1, Strategy::ring), std::tuple(3, 1, Strategy::ring),
                                         std::tuple(2, 2, Strategy::alltoall), std::tuple(1, 2, Strategy::ring),
                                         std::tuple(4, 1, Strategy::allgather)));

}  // namespace
}  // namespace marble

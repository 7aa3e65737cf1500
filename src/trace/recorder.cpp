// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "trace/recorder.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace marble {
namespace {

using Json = nlohmann::json;

constexpr const char* kTrackNames[Recorder::kNumTracks] = {"stream", "fetches", "returns"};

Json named(const char* what, std::int32_t rank, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

}  // namespace

void Recorder::record(bool on) {
  if (on && timeline_ == nullptr) timeline_ = backend_.make_timeline();
  records_ = on;
}

std::int64_t Recorder::begin(Track track, std::string_view category, std::string name,
                             std::vector<std::pair<std::string, std::int64_t>> args) {
  if (!records_) return -1;
  events_.push_back({track, std::string(category), std::move(name), std::move(args), timeline_->mark(), 0});
  return static_cast<std::int64_t>(events_.size()) - 1;
}

void Recorder::end(std::int64_t event) {
  if (event >= 0) events_[static_cast<std::size_t>(event)].end = timeline_->mark();
}

std::string Recorder::take() {
  const std::vector<std::int64_t> points =
      timeline_ == nullptr ? std::vector<std::int64_t>{} : timeline_->nanoseconds();
  std::string text = named("process_name", rank_, 0, "rank " + std::to_string(rank_)).dump();
  for (int track = 0; track < kNumTracks; ++track)
    text += ",\n" + named("thread_name", rank_, track, kTrackNames[track]).dump();
  for (const Event& event : events_) {
    const std::int64_t from = points[static_cast<std::size_t>(event.begin)];
    const std::int64_t to = points[static_cast<std::size_t>(event.end)];
    Json args = Json::object();
    for (const auto& [name, value] : event.args) args[name] = value;
    const Json json = {{"ph", "X"},
                       {"name", event.name},
                       {"cat", event.category},
                       {"pid", rank_},
                       {"tid", static_cast<int>(event.track)},
                       {"ts", static_cast<double>(from) / 1e3},
                       {"dur", static_cast<double>(to - from) / 1e3},
                       {"args", args}};
    text += ",\n" + json.dump();
  }
  events_.clear();
  timeline_.reset();
  records_ = false;
  return text;
}

}  // namespace marble

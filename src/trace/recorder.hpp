// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Events between points of a backend's timeline.

#include "marble/backend.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace marble {

class Recorder {
 public:
  enum class Track { stream, fetches, returns };
  static constexpr int kNumTracks = 3;

  Recorder(Backend& backend, std::int32_t rank) : backend_(backend), rank_(rank) {}

  void record(bool on);
  [[nodiscard]] bool records() const { return records_; }

  /// An event that begins here; its number, for `end`. `args`: names and values.
  std::int64_t begin(Track track, std::string_view category, std::string name,
                     std::vector<std::pair<std::string, std::int64_t>> args = {});
  /// It ends here. Nothing happens to a negative number.
  void end(std::int64_t event);

  /// The events so far as JSON objects, and the names of rank and tracks; forgets them.
  [[nodiscard]] std::string take();

 private:
  struct Event {
    Track track;
    std::string category, name;
    std::vector<std::pair<std::string, std::int64_t>> args;
    std::int64_t begin = 0, end = 0;  // points
  };

  Backend& backend_;
  std::int32_t rank_;
  bool records_ = false;
  std::unique_ptr<Timeline> timeline_;
  std::vector<Event> events_;
};

}  // namespace marble

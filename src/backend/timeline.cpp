// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/backend.hpp"

#include <chrono>

namespace marble {
namespace {

class HostTimeline final : public Timeline {
 public:
  std::int64_t mark() override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    points_.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    return static_cast<std::int64_t>(points_.size()) - 1;
  }
  std::int64_t mark(void*) override { return mark(); }
  std::vector<std::int64_t> nanoseconds() override { return points_; }

 private:
  std::vector<std::int64_t> points_;
};

}  // namespace

std::unique_ptr<Timeline> Backend::make_timeline() {
  return std::make_unique<HostTimeline>();
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <unistd.h>

namespace marble::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  // Raw terminal codes: back to the line's start, erase it.
  if (last_percent_ >= 0) std::fputs("\r\x1b[K", stderr);
}

void Progress::show(double fraction, std::string_view label) {
  constexpr int kWidth = 40;
  const int percent = static_cast<int>(100.0 * std::clamp(fraction, 0.0, 1.0));
  if (!terminal_ || percent == last_percent_) return;
  last_percent_ = percent;
  fmt::print(stderr, "\r\x1b[K[{:<{}}] {:>3} % {}", fmt::format("{:#<{}}", "", kWidth * percent / 100), kWidth, percent,
             label);
  std::fflush(stderr);
}

}  // namespace marble::cli

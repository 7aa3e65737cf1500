// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A bar on standard error for long work, drawn only on a terminal and wiped when done.

#include <string_view>

namespace marble::cli {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `fraction` in [0, 1].
  void show(double fraction, std::string_view label);

 private:
  bool terminal_;
  int last_percent_ = -1;
};

}  // namespace marble::cli

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the built `marble` and gives back what a user would see.

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace marble::test {

struct CommandResult {
  int code = -1;
  std::string out;
  std::string err;

  /// Standard output as JSON; throws unless it is exactly one document.
  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// `marble <arguments>` through the shell.
[[nodiscard]] CommandResult run_marble(const std::string& arguments);

/// `mpirun <contexts>`, where "MARBLE" stands for the binary: "-n 2 MARBLE verify … : -n 1 MARBLE verify …".
[[nodiscard]] CommandResult run_mpi(std::string contexts);

/// A folder of this test case alone, empty at first and removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// Writes a file of this text and returns its path.
  std::string write(const std::string& name, const std::string& text) const;
  [[nodiscard]] std::string read(const std::string& name) const;
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(folder_); }

 private:
  std::filesystem::path folder_;
};

}  // namespace marble::test

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "cli/run_command.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>

namespace marble::test {
namespace {

std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

CommandResult run_shell(const std::string& command) {
  const ScratchFolder scratch;
  const std::string err = scratch.path("stderr");
  FILE* pipe = popen((command + " 2>" + err).c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed: " + command);
  CommandResult result;
  std::array<char, 4096> chunk{};
  while (const std::size_t got = fread(chunk.data(), 1, chunk.size(), pipe)) result.out.append(chunk.data(), got);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.err = read_file(err);
  return result;
}

}  // namespace

CommandResult run_marble(const std::string& arguments) {
  return run_shell(std::string(MARBLE_BINARY) + " " + arguments);
}

CommandResult run_mpi(std::string contexts) {
  constexpr std::string_view kName = "MARBLE";
  for (std::size_t at = 0; (at = contexts.find(kName, at)) != std::string::npos;) {
    contexts.replace(at, kName.size(), MARBLE_BINARY);
    at += std::string_view(MARBLE_BINARY).size();
  }
  return run_shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " MARBLE_MPIRUN " --oversubscribe " +
                   contexts);
}

ScratchFolder::ScratchFolder() {
  std::string name = testing::TempDir() + "marble_cli_XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder " + name);
  folder_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string ScratchFolder::write(const std::string& name, const std::string& text) const {
  std::ofstream(folder_ / name, std::ios::binary) << text;
  return path(name);
}

std::string ScratchFolder::read(const std::string& name) const {
  return read_file(folder_ / name);
}

}  // namespace marble::test

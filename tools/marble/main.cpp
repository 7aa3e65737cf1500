// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "command.hpp"

#include "marble/error.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace marble::cli {
namespace {

struct Command {
  const char* name;
  const char* description;
  Run (*set_up)(CLI::App&);
};

constexpr Command kCommands[] = {
    {"layouts", "List the layout generators and their parameters", set_up_layouts},
    {"layout", "Make or read a layout, count it, and optionally write it", set_up_layout},
    {"plan", "Plan a layout over ranks: placement, balance, exchange, work per step", set_up_plan},
    {"simulate", "Predict layer times, memory and the best plan for any number of GPUs; nothing runs", set_up_simulate},
    {"verify", "Run forward and backward over ranks and compare with dense fp64 and one rank", set_up_verify},
    {"bench", "Time whole layers over ranks, beside their works alone and their exchanges alone", set_up_bench},
};

int fail(std::string message, int code) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "marble: error: {}\n", message);
  return code;
}

int run(int argc, char** argv) {
  CLI::App app{"Exact, balanced attention over packed multimodal sequences", "marble"};
  app.require_subcommand(0, 1);
  std::vector<std::pair<CLI::App*, Run>> runs;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.description);
    runs.emplace_back(sub, command.set_up(*sub));
  }
  try {
    app.parse(argc, argv);
    for (const auto& [sub, action] : runs) {
      if (sub->parsed()) return action();
    }
    return fail("a command is missing; see marble --help", 2);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
  } catch (const CLI::ParseError& error) {
    return fail(error.what(), 2);
  }
  return 0;
}

}  // namespace
}  // namespace marble::cli

int main(int argc, char** argv) {
  try {
    return marble::cli::run(argc, argv);
  } catch (const std::exception& error) {
    return marble::cli::fail(error.what(), 1);
  }
}

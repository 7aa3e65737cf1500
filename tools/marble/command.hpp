// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The commands of the command line. Each set-up function adds its flags to `app` and returns what to run once they are
// parsed; the result is the exit code. Failures leave as marble::Error (exit 1) or CLI::ParseError (exit 2).

#include <CLI/CLI.hpp>

#include <functional>

namespace marble::cli {

using Run = std::function<int()>;

Run set_up_layouts(CLI::App& app);
Run set_up_layout(CLI::App& app);
Run set_up_plan(CLI::App& app);
Run set_up_simulate(CLI::App& app);
Run set_up_verify(CLI::App& app);
Run set_up_bench(CLI::App& app);

}  // namespace marble::cli

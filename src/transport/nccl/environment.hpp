// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which rank this process is, by what started it.

#include "marble/transport.hpp"

#include <functional>
#include <string>

namespace marble::nccl {

/// Reads a variable; null when it is not set (std::getenv).
using Environment = std::function<const char*(const char* name)>;

/// Fills in what the options leave open. Throws InvalidArgument, naming the variable, when nothing says it or the
/// values are impossible.
[[nodiscard]] NcclOptions resolve(NcclOptions options, const Environment& environment);

}  // namespace marble::nccl

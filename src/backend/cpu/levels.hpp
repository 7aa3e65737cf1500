// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cpu/kernels.hpp"

#include <vector>

namespace marble::cpu {

/// The kernels that this machine can run, best first; empty when it can run none.
[[nodiscard]] std::vector<const Kernels*> usable_kernels();

}  // namespace marble::cpu

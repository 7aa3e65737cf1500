// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/cpu/kernels.hpp"

namespace marble::cpu {

/// The kernels compiled for the best processor level that this machine has. Throws BackendError when it has none.
[[nodiscard]] const Kernels& best_kernels();

}  // namespace marble::cpu

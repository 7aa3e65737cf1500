// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "marble/transport.hpp"

#include <cstdint>
#include <memory>

namespace marble {

/// Largest MPI message, well below the 2^31 - 1 that an MPI count can say.
inline constexpr std::int64_t kMpiCutBytes = std::int64_t{1} << 30;

/// As in marble/transport.hpp, with parcels cut into MPI messages of at most `cut_bytes`, the same on all ranks.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options, std::int64_t cut_bytes);

}  // namespace marble

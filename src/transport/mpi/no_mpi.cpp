// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/mpi/mpi.hpp"

#include "marble/error.hpp"

namespace marble {

bool mpi_available() {
  return false;
}

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions&, std::int64_t) {
  throw InvalidArgument("transport mpi is not in this build; configure with -DMARBLE_MPI=ON, or use transport local");
}

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options) {
  return make_mpi_transport(options, kMpiCutBytes);
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/mpi/mpi.hpp"

#include "transport/transport_conformance.hpp"

#include <mpi.h>

namespace marble {
namespace {

RanksUnderTest mpi_ranks(const std::string& name, std::int64_t cut_bytes) {
  int num_ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  return {name, num_ranks, [cut_bytes](const TransportOptions& options, const std::function<void(Transport&)>& fn) {
            MPI_Barrier(MPI_COMM_WORLD);  // a rank may still be in the last test, and limits are short
            fn(*make_mpi_transport(options, cut_bytes));
          }};
}

INSTANTIATE_TEST_SUITE_P(Mpi, TransportConformance,
                         testing::Values(mpi_ranks("Whole", kMpiCutBytes), mpi_ranks("CutAt1000Bytes", 1'000)),
                         ranks_name);

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// MPI is this program's own, as it is in an application that uses MPI itself.

#include "transport/failures_of_rank.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleTest(&argc, argv);
  marble::report_as_rank(rank);
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}

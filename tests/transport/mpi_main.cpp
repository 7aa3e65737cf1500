// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// Runs the same tests on every rank: rank 0 reports as usual, the others report their failures only. MPI is this
// program's own, as it is in an application that uses MPI itself.

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

namespace {

class FailuresOfRank final : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOfRank(int rank) : rank_(rank) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "[rank %d] %s: %s:%d: %s\n", rank_, test != nullptr ? test->name() : "outside a test",
                 result.file_name(), result.line_number(), result.message());
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOfRank(rank));
  }
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}

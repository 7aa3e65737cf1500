// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/mpi/session.hpp"

#include "marble/error.hpp"

#include <string>
#include <utility>

namespace marble {
namespace {

bool mpi_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

}  // namespace

void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  throw TransportError(fmt::format("{}: {}", call, text));
}

MpiSession& MpiSession::get() {
  static MpiSession session;
  return session;
}

MpiSession::MpiSession() {
  require(!mpi_finalized(), "transport mpi is made after MPI_Finalize");
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return;
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  owns_mpi_ = true;
}

MpiSession::~MpiSession() {
  if (!owns_mpi_ || mpi_finalized()) return;
  if (failed_)
    MPI_Abort(MPI_COMM_WORLD, 1);
  else
    MPI_Finalize();
}

void MpiSession::park(std::shared_ptr<void> memory) {
  const std::scoped_lock lock(mutex_);
  parked_.push_back(std::move(memory));
}

Communicator::Communicator(MpiSession& session, std::chrono::milliseconds time_limit)
    : session_(session), communicator_(std::make_shared<MPI_Comm>(MPI_COMM_NULL)) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, communicator_.get(), &request), "MPI_Comm_idup");
  const bool met = poll_until(std::chrono::steady_clock::now() + time_limit, [&] {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
  if (!met) {
    session_.mark_failed();
    session_.park(communicator_);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    throw TransportError(fmt::format("rank {} waited {:.1f} s for all ranks to make an MPI transport", rank,
                                     std::chrono::duration<double>(time_limit).count()));
  }
  check_mpi(MPI_Comm_set_errhandler(get(), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Communicator::~Communicator() {
  // After a failure other ranks may not come to this collective call.
  if (!session_.failed() && !mpi_finalized()) MPI_Comm_free(communicator_.get());
}

std::int32_t Communicator::rank() const {
  int rank = 0;
  MPI_Comm_rank(get(), &rank);
  return rank;
}

std::int32_t Communicator::size() const {
  int size = 0;
  MPI_Comm_size(get(), &size);
  return size;
}

}  // namespace marble

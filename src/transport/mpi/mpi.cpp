// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/mpi/mpi.hpp"

#include "transport/mpi/session.hpp"
#include "transport/report.hpp"
#include "transport/staged.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace marble {
namespace {

/// What one parcel is on the wire: the sizes of its messages, so that both sides can be compared before any byte is
/// believed, then its bytes in parts.
struct Requests {
  MPI_Request sizes = MPI_REQUEST_NULL;
  std::vector<MPI_Request> parts;

  [[nodiscard]] bool done() const {
    return sizes == MPI_REQUEST_NULL &&
           std::all_of(parts.begin(), parts.end(), [](MPI_Request part) { return part == MPI_REQUEST_NULL; });
  }
};

/// Parcels between two ranks have tags of their own; order keeps them apart when the tags come round again.
int tag_of(const Parcel& parcel) {
  constexpr std::int64_t kTags = 32'768;  // the least that MPI promises
  return static_cast<int>(parcel.sequence % kTags);
}

int sizes_count(const Parcel& parcel) {
  require(parcel.sizes.size() <= std::numeric_limits<int>::max(), "{} messages to one peer in one exchange",
          parcel.sizes.size());
  return static_cast<int>(parcel.sizes.size());
}

class MpiExchange final : public PendingExchange {
 public:
  MpiExchange(std::string label, std::vector<Parcel> outgoing, std::vector<Parcel> incoming,
              std::shared_ptr<const Communicator> communicator, std::chrono::milliseconds limit)
      : PendingExchange(std::move(label), std::move(incoming)),
        communicator_(std::move(communicator)),
        rank_(communicator_->rank()),
        limit_(limit),
        outgoing_(std::move(outgoing)),
        sends_(outgoing_.size()),
        recvs_(incoming_.size()),
        sent_sizes_(incoming_.size()) {}

  ~MpiExchange() override {
    const auto done = [](const Requests& requests) { return requests.done(); };
    if (std::all_of(sends_.begin(), sends_.end(), done) && std::all_of(recvs_.begin(), recvs_.end(), done)) return;
    // MPI still owns the memory, and a send that nobody receives would block MPI_Finalize.
    MpiSession& session = MpiSession::get();
    session.mark_failed();
    session.park(std::make_shared<std::vector<Parcel>>(std::move(outgoing_)));
    session.park(std::make_shared<std::vector<Parcel>>(std::move(incoming_)));
    session.park(std::make_shared<std::vector<std::vector<std::int64_t>>>(std::move(sent_sizes_)));
  }

  /// Not the constructor's work: if a call fails midway, the destructor must see what was posted.
  void post(std::int64_t cut_bytes) {
    for (std::size_t i = 0; i < incoming_.size(); ++i) post_recv(i, cut_bytes);
    for (std::size_t i = 0; i < outgoing_.size(); ++i) post_send(i, cut_bytes);
  }

  void complete(Deadline deadline) override {
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      const Parcel& parcel = incoming_[i];
      if (!poll_until(deadline, [&] { return test_sizes(i); })) time_out(parcel, "from");
      check_sizes(rank_, parcel.peer, label_, parcel.sizes, sent_sizes_[i]);
      if (!poll_until(deadline, [&] { return test_parts(parcel, recvs_[i]); })) time_out(parcel, "from");
    }
    for (std::size_t i = 0; i < outgoing_.size(); ++i) {
      const Parcel& parcel = outgoing_[i];
      const auto sent = [&] { return test(parcel, sends_[i].sizes) && test_parts(parcel, sends_[i]); };
      if (!poll_until(deadline, sent)) time_out(parcel, "to");
    }
  }

 private:
  void post_recv(std::size_t i, std::int64_t cut_bytes) {
    Parcel& parcel = incoming_[i];
    parcel.bytes = make_bytes(parcel.num_bytes);
    sent_sizes_[i].resize(parcel.sizes.size());
    check(parcel, "MPI_Irecv",
          MPI_Irecv(sent_sizes_[i].data(), sizes_count(parcel), MPI_INT64_T, parcel.peer, tag_of(parcel),
                    communicator_->get(), &recvs_[i].sizes));
    for (std::int64_t at = 0; at < parcel.num_bytes; at += cut_bytes)
      check(parcel, "MPI_Irecv",
            MPI_Irecv(parcel.bytes.get() + at, static_cast<int>(std::min(cut_bytes, parcel.num_bytes - at)), MPI_BYTE,
                      parcel.peer, tag_of(parcel), communicator_->get(),
                      &recvs_[i].parts.emplace_back(MPI_REQUEST_NULL)));
  }

  void post_send(std::size_t i, std::int64_t cut_bytes) {
    const Parcel& parcel = outgoing_[i];
    check(parcel, "MPI_Isend",
          MPI_Isend(parcel.sizes.data(), sizes_count(parcel), MPI_INT64_T, parcel.peer, tag_of(parcel),
                    communicator_->get(), &sends_[i].sizes));
    for (std::int64_t at = 0; at < parcel.num_bytes; at += cut_bytes)
      check(parcel, "MPI_Isend",
            MPI_Isend(parcel.bytes.get() + at, static_cast<int>(std::min(cut_bytes, parcel.num_bytes - at)), MPI_BYTE,
                      parcel.peer, tag_of(parcel), communicator_->get(),
                      &sends_[i].parts.emplace_back(MPI_REQUEST_NULL)));
  }

  bool test(const Parcel& parcel, MPI_Request& request) const {
    int done = 0;
    check(parcel, "MPI_Test", MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    return done != 0;
  }

  bool test_parts(const Parcel& parcel, Requests& requests) const {
    return std::all_of(requests.parts.begin(), requests.parts.end(),
                       [&](MPI_Request& part) { return test(parcel, part); });
  }

  /// True once the sizes of incoming parcel i are known.
  bool test_sizes(std::size_t i) {
    const Parcel& parcel = incoming_[i];
    MPI_Status status;
    int done = 0;
    const int code = MPI_Test(&recvs_[i].sizes, &done, &status);
    int error_class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
    if (error_class == MPI_ERR_TRUNCATE)
      throw TransportError(fmt::format("rank {} expected {} from rank {} in '{}', which sent more messages", rank_,
                                       describe_messages(parcel.sizes), parcel.peer, label_));
    check(parcel, "MPI_Test", code);
    if (done == 0) return false;
    int count = 0;
    MPI_Get_count(&status, MPI_INT64_T, &count);
    sent_sizes_[i].resize(static_cast<std::size_t>(count));
    return true;
  }

  void check(const Parcel& parcel, std::string_view call, int code) const {
    if (code != MPI_SUCCESS)
      check_mpi(code, fmt::format("rank {}: {} with rank {} in '{}'", rank_, call, parcel.peer, label_));
  }

  [[noreturn]] void time_out(const Parcel& parcel, std::string_view direction) const {
    throw TransportError(describe_timeout(rank_, limit_, parcel.sizes, direction, parcel.peer, label_));
  }

  std::shared_ptr<const Communicator> communicator_;
  std::int32_t rank_;
  std::chrono::milliseconds limit_;
  std::vector<Parcel> outgoing_;
  std::vector<Requests> sends_;                        // by outgoing parcel
  std::vector<Requests> recvs_;                        // by incoming parcel
  std::vector<std::vector<std::int64_t>> sent_sizes_;  // by incoming parcel: what the peer says it sent
};

class MpiTransport final : public StagedTransport {
 public:
  MpiTransport(std::shared_ptr<const Communicator> communicator, const TransportOptions& options,
               std::int64_t cut_bytes)
      : StagedTransport(communicator->rank(), communicator->size(), options),
        communicator_(std::move(communicator)),
        cut_bytes_(cut_bytes) {}

  [[nodiscard]] std::string_view name() const override { return "mpi"; }

 private:
  std::unique_ptr<PendingExchange> start(std::string label, std::vector<Parcel> outgoing,
                                         std::vector<Parcel> incoming) override {
    auto exchange = std::make_unique<MpiExchange>(std::move(label), std::move(outgoing), std::move(incoming),
                                                  communicator_, time_limit());
    exchange->post(cut_bytes_);
    return exchange;
  }

  void on_failure(const std::string&) override { MpiSession::get().mark_failed(); }

  std::shared_ptr<const Communicator> communicator_;  // shared with abandoned exchanges
  std::int64_t cut_bytes_;
};

}  // namespace

bool mpi_available() {
  return true;
}

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options, std::int64_t cut_bytes) {
  require(cut_bytes > 0 && cut_bytes <= std::numeric_limits<int>::max(), "MPI messages cut at {} bytes", cut_bytes);
  auto communicator = std::make_shared<const Communicator>(MpiSession::get(), options.time_limit);
  return std::make_unique<MpiTransport>(std::move(communicator), options, cut_bytes);
}

std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options) {
  return make_mpi_transport(options, kMpiCutBytes);
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/local/mailboxes.hpp"
#include "transport/report.hpp"
#include "transport/staged.hpp"

#include "marble/error.hpp"

#include <exception>
#include <thread>
#include <utility>

namespace marble {
namespace {

class LocalExchange final : public PendingExchange {
 public:
  LocalExchange(std::string label, std::vector<Parcel> incoming, std::int32_t rank, Mailboxes& mailboxes,
                std::chrono::milliseconds limit)
      : PendingExchange(std::move(label), std::move(incoming)), rank_(rank), mailboxes_(mailboxes), limit_(limit) {}

  void complete(Deadline deadline) override {
    for (Parcel& expected : incoming_) {
      Parcel parcel;
      const auto outcome = mailboxes_.receive(expected.peer, rank_, expected.sequence, deadline, parcel);
      if (outcome != Mailboxes::Outcome::arrived) throw TransportError(explain(outcome, expected));
      check_sizes(rank_, expected.peer, label_, expected.sizes, parcel.sizes);
      expected.bytes = std::move(parcel.bytes);
    }
  }

 private:
  [[nodiscard]] std::string explain(Mailboxes::Outcome outcome, const Parcel& expected) const {
    if (outcome == Mailboxes::Outcome::timed_out)
      return describe_timeout(rank_, limit_, expected.sizes, "from", expected.peer, label_);
    const std::string awaited = fmt::format("rank {} awaited {} from rank {} in '{}'", rank_,
                                            describe_messages(expected.sizes), expected.peer, label_);
    if (outcome == Mailboxes::Outcome::source_left) return fmt::format("{}, which returned without sending", awaited);
    const auto failure = mailboxes_.failure().value_or(Mailboxes::Failure{});
    return fmt::format("{} when rank {} failed: {}", awaited, failure.rank, failure.reason);
  }

  std::int32_t rank_;
  Mailboxes& mailboxes_;
  std::chrono::milliseconds limit_;
};

class LocalTransport final : public StagedTransport {
 public:
  LocalTransport(std::int32_t rank, std::int32_t num_ranks, const TransportOptions& options, Mailboxes& mailboxes)
      : StagedTransport(rank, num_ranks, options), mailboxes_(mailboxes) {}

  [[nodiscard]] std::string_view name() const override { return "local"; }

 private:
  std::unique_ptr<PendingExchange> start(std::string label, std::vector<Parcel> outgoing,
                                         std::vector<Parcel> incoming) override {
    for (Parcel& parcel : outgoing) {
      const std::int32_t target = parcel.peer;
      mailboxes_.send(rank(), target, std::move(parcel));
    }
    return std::make_unique<LocalExchange>(std::move(label), std::move(incoming), rank(), mailboxes_, time_limit());
  }

  void on_failure(const std::string& reason) override { mailboxes_.fail(rank(), reason); }

  Mailboxes& mailboxes_;
};

/// One rank's thread: whatever it throws ends the other ranks' waits.
std::exception_ptr run_rank(std::int32_t rank, std::int32_t num_ranks, const TransportOptions& options,
                            Mailboxes& mailboxes, const std::function<void(Transport&)>& fn) {
  try {
    LocalTransport transport(rank, num_ranks, options, mailboxes);
    fn(transport);
    mailboxes.leave(rank);
    return nullptr;
  } catch (const std::exception& error) {
    mailboxes.fail(rank, error.what());
    return std::current_exception();
  } catch (...) {
    mailboxes.fail(rank, "an exception of unknown type");
    return std::current_exception();
  }
}

}  // namespace

void run_local_ranks(std::int32_t num_ranks, const TransportOptions& options,
                     const std::function<void(Transport&)>& fn) {
  require(num_ranks >= 1, "{} local ranks; at least 1 is needed", num_ranks);
  Mailboxes mailboxes(num_ranks);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(num_ranks));
  {
    std::vector<std::jthread> threads;
    threads.reserve(errors.size());
    for (std::int32_t rank = 0; rank < num_ranks; ++rank)
      threads.emplace_back(
          [&, rank] { errors[static_cast<std::size_t>(rank)] = run_rank(rank, num_ranks, options, mailboxes, fn); });
  }
  // The others' errors are consequences of the first failure.
  if (const auto failure = mailboxes.failure(); failure && errors[static_cast<std::size_t>(failure->rank)])
    std::rethrow_exception(errors[static_cast<std::size_t>(failure->rank)]);
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/local/mailboxes.hpp"

#include <utility>

namespace marble {

Mailboxes::Mailboxes(std::int32_t num_ranks)
    : num_ranks_(num_ranks),
      boxes_(static_cast<std::size_t>(num_ranks) * static_cast<std::size_t>(num_ranks)),
      arrived_(static_cast<std::size_t>(num_ranks)),
      left_(static_cast<std::size_t>(num_ranks), 0) {}

Mailboxes::Box& Mailboxes::box(std::int32_t source, std::int32_t target) {
  return boxes_[static_cast<std::size_t>(source) * static_cast<std::size_t>(num_ranks_) +
                static_cast<std::size_t>(target)];
}

void Mailboxes::wake_all() {
  for (auto& condition : arrived_) condition.notify_all();
}

void Mailboxes::send(std::int32_t source, std::int32_t target, Parcel parcel) {
  const std::scoped_lock lock(mutex_);
  const std::int64_t sequence = parcel.sequence;
  box(source, target).emplace(sequence, std::move(parcel));
  arrived_[static_cast<std::size_t>(target)].notify_all();
}

Mailboxes::Outcome Mailboxes::receive(std::int32_t source, std::int32_t target, std::int64_t sequence,
                                      Deadline deadline, Parcel& parcel) {
  std::unique_lock lock(mutex_);
  Box& parcels = box(source, target);
  const char& source_left = left_[static_cast<std::size_t>(source)];
  arrived_[static_cast<std::size_t>(target)].wait_until(
      lock, deadline, [&] { return parcels.contains(sequence) || failure_ || source_left != 0; });
  if (const auto found = parcels.find(sequence); found != parcels.end()) {
    parcel = std::move(found->second);
    parcels.erase(found);
    return Outcome::arrived;
  }
  if (failure_) return Outcome::group_failed;
  return source_left != 0 ? Outcome::source_left : Outcome::timed_out;
}

void Mailboxes::fail(std::int32_t rank, const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (!failure_) failure_ = Failure{rank, reason};
  wake_all();
}

void Mailboxes::leave(std::int32_t rank) {
  const std::scoped_lock lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = 1;
  wake_all();
}

std::optional<Mailboxes::Failure> Mailboxes::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

}  // namespace marble

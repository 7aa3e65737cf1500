// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/engine.hpp"

#include "transport/nccl/wire.hpp"
#include "transport/report.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace marble::nccl {
namespace {

using std::chrono::steady_clock;

/// The parcel for, or from, `peer`.
template <typename P>
P& parcel_of(std::vector<P>& parcels, std::int32_t peer) {
  return *std::find_if(parcels.begin(), parcels.end(), [&](const P& parcel) { return parcel.peer == peer; });
}

std::string_view to_string(Place place) {
  return place == Place::host ? "host memory" : "device memory";
}

}  // namespace

Engine::Engine(Connections connections, Device& device, Failure& failure, std::chrono::milliseconds time_limit,
               std::function<void()> on_failure)
    : connections_(std::move(connections)),
      device_(device),
      failure_(failure),
      rank_(connections_.rank()),
      num_ranks_(connections_.num_ranks()),
      time_limit_(time_limit),
      on_failure_(std::move(on_failure)) {
  const auto ranks = static_cast<std::size_t>(num_ranks_);
  early_posts_.resize(ranks);
  unmatched_.resize(ranks);
  awaited_recvs_.resize(ranks);
  last_device_recvs_.resize(ranks);
  has_left_.resize(ranks);
  knows_failure_.resize(ranks);
  is_done_.resize(ranks);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  stops_ = true;
  connections_.wake();
  thread_.join();
}

void Engine::command(std::function<void()> fn) {
  {
    const std::scoped_lock lock(mutex_);
    commands_.push_back(std::move(fn));
    has_commands_ = true;
  }
  connections_.wake();
}

void Engine::set_courier(Courier* courier) {
  command([this, courier] { courier_ = courier; });
}

void Engine::begin(std::shared_ptr<Exchange> exchange) {
  command([this, exchange = std::move(exchange)] { start(exchange); });
}

void Engine::wait_host(const Exchange& exchange) {
  const auto late_recv = [&] {
    return std::find_if(exchange.recvs.begin(), exchange.recvs.end(),
                        [](const Incoming& parcel) { return parcel.place == Place::host && !parcel.bytes; });
  };
  const auto late_send = [&] {
    return std::find_if(exchange.sends.begin(), exchange.sends.end(),
                        [](const Outgoing& parcel) { return parcel.place == Place::host && !parcel.is_started; });
  };
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time_limit_, [&] {
    return failure_.happened() || (late_recv() == exchange.recvs.end() && late_send() == exchange.sends.end());
  });
  std::string reason;
  if (const auto recv = late_recv(); recv != exchange.recvs.end())
    reason = describe_timeout(rank_, time_limit_, recv->sizes(), "from", recv->peer, exchange.label);
  else if (const auto send = late_send(); send != exchange.sends.end())
    reason = describe_timeout(rank_, time_limit_, send->sizes(), "to", send->peer, exchange.label);
  else
    return;
  lock.unlock();
  fail(reason);
  failure_.raise();
}

void Engine::wait_started(const Exchange& exchange) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, time_limit_, [&] { return failure_.happened() || exchange.is_started; })) {
    failure_.check();
    return;
  }
  const std::int32_t peer = exchange.awaited;
  lock.unlock();
  const auto is_its = [&](const Parcel& parcel) { return parcel.peer == peer; };
  const auto recv = std::find_if(exchange.recvs.begin(), exchange.recvs.end(), is_its);
  const auto send = std::find_if(exchange.sends.begin(), exchange.sends.end(), is_its);
  if (recv != exchange.recvs.end())
    fail(describe_timeout(rank_, time_limit_, recv->sizes(), "from", peer, exchange.label));
  else if (send != exchange.sends.end())
    fail(describe_timeout(rank_, time_limit_, send->sizes(), "to", peer, exchange.label));
  else
    fail(fmt::format("rank {} could not begin '{}' in time", rank_, exchange.label));
  failure_.raise();
}

std::vector<std::string> Engine::all_gather(std::string payload, std::string_view what) {
  const std::int64_t size = std::ssize(payload);
  const std::int64_t round = ++last_round_;
  command([this, round, payload = std::move(payload)]() mutable {
    if (rank_ == 0)
      gather(round, 0, std::move(payload));
    else
      connections_.send(0, FrameType::gather, Writer().value(round).text(payload).take());
  });
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time_limit_, [&] { return failure_.happened() || gathered_.contains(round); });
  if (auto found = gathered_.extract(round)) return std::move(found.mapped());
  std::int32_t awaited = 0;  // rank 0 knows who is missing
  if (const auto found = rounds_.find(round); found != rounds_.end()) {
    const auto& payloads = found->second.payloads;
    const auto missing = std::find(payloads.begin(), payloads.end(), std::nullopt);
    awaited = static_cast<std::int32_t>(missing - payloads.begin());
  }
  lock.unlock();
  fail(describe_timeout(rank_, time_limit_, std::vector{size}, "from", awaited, what));
  failure_.raise();
}

void Engine::fail_for(std::int32_t origin, const std::string& reason) {
  {
    // Whoever sees that it has happened finds the announcement whole.
    const std::scoped_lock lock(mutex_);
    const bool is_own = origin == rank_;
    if (!failure_.set(is_own ? reason : fmt::format("rank {}: rank {} failed: {}", rank_, origin, reason))) return;
    announcement_ = Writer().value(origin).text(reason).take();
  }
  changed_.notify_all();
  on_failure_();
  connections_.wake();
}

void Engine::run() {
  constexpr std::chrono::milliseconds kFarewellLimit{2'000}, kTick{1};
  bool says_farewell = false;
  Deadline farewell{};
  try {
    device_.select();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  while (true) {
    try {
      take_commands();
      if (failure_.happened())
        settle_failure();
      else
        advance();
      if (stops_ && !std::exchange(says_farewell, true)) {
        farewell = steady_clock::now() + (failure_.happened() ? kFarewellLimit : time_limit_);
        if (!failure_.happened()) connections_.send_to_connected(FrameType::leave, {});
      }
      if (says_farewell && (connections_.is_flushed() || steady_clock::now() > farewell)) return;
      // Frames and commands wake this thread.
      const bool is_busy = says_farewell || (failure_.happened() && !says_quiet_);
      connections_.poll(is_busy ? kTick : std::chrono::milliseconds(-1), *this);
    } catch (const std::exception& error) {
      fail(error.what());
      if (stops_) return;
    }
  }
}

void Engine::take_commands() {
  if (!has_commands_) return;
  std::vector<std::function<void()>> commands;
  {
    const std::scoped_lock lock(mutex_);
    commands.swap(commands_);
    has_commands_ = false;
  }
  for (const auto& fn : commands) fn();
}

void Engine::start(const std::shared_ptr<Exchange>& exchange) {
  if (failure_.happened()) return;
  for (Incoming& parcel : exchange->recvs) expect(exchange, parcel);
  for (Outgoing& parcel : exchange->sends) {
    connections_.connect(parcel.peer);
    auto& early = early_posts_[static_cast<std::size_t>(parcel.peer)];
    if (auto post = early.extract(parcel.sequence))
      match(*exchange, parcel, std::move(post.mapped()));
    else
      unmatched_[static_cast<std::size_t>(parcel.peer)].emplace(parcel.sequence, exchange);
  }
  if (!has_device_parcels(*exchange)) return;
  open_.push_back(exchange);
}

void Engine::expect(const std::shared_ptr<Exchange>& exchange, Incoming& parcel) {
  const auto peer = static_cast<std::size_t>(parcel.peer);
  if (has_left_[peer] != 0)
    return fail(fmt::format("rank {} awaits {} from rank {} in '{}', which has left", rank_,
                            describe_messages(parcel.sizes()), parcel.peer, exchange->label));
  if (parcel.place == Place::device) last_device_recvs_[peer] = parcel.sequence;
  if (parcel.place == Place::host || courier_->wants_announcements())
    awaited_recvs_[peer].emplace(parcel.sequence, exchange);
  connections_.send(
      parcel.peer, FrameType::post,
      Writer().value(parcel.sequence).value(parcel.place).values(parcel.sizes()).values(parcel.offsets).take());
}

void Engine::match(Exchange& exchange, Outgoing& parcel, Post post) {
  const std::vector<std::int64_t> sizes = parcel.sizes();
  try {
    check_sizes(parcel.peer, rank_, exchange.label, post.sizes, sizes);
  } catch (const TransportError& difference) {
    return fail_for(parcel.peer, difference.what());
  }
  if (post.place != parcel.place)
    return fail_for(parcel.peer, fmt::format("rank {} expected {} in {} from rank {} in '{}', which sent {}",
                                             parcel.peer, describe_messages(sizes), to_string(post.place), rank_,
                                             exchange.label, to_string(parcel.place)));
  if (parcel.place == Place::device) {
    parcel.post = std::move(post);
    if (courier_->wants_announcements())
      connections_.send(parcel.peer, FrameType::announcement, Writer().value(parcel.sequence).take());
    return;
  }
  connections_.send(parcel.peer, FrameType::host_data, Writer().value(parcel.sequence).take() + parcel.bytes);
  {
    const std::scoped_lock lock(mutex_);
    parcel.bytes = {};
    parcel.is_started = true;
  }
  changed_.notify_all();
}

void Engine::advance() {
  if (open_.empty()) return;
  courier_->begin_round();
  for (auto exchange = open_.begin(); exchange != open_.end();) {
    const std::int32_t awaited = courier_->advance(**exchange);
    {
      const std::scoped_lock lock(mutex_);
      (*exchange)->is_started = awaited == Courier::kAll;
      (*exchange)->awaited = awaited;
    }
    if (awaited != Courier::kAll) {
      ++exchange;
      continue;
    }
    changed_.notify_all();
    exchange = open_.erase(exchange);
  }
}

void Engine::gather(std::int64_t round, std::int32_t rank, std::string payload) {
  std::unique_lock lock(mutex_);
  Round& entry = rounds_[round];
  if (entry.payloads.empty()) {
    entry.payloads.resize(static_cast<std::size_t>(num_ranks_));
    entry.missing = num_ranks_;
  }
  entry.payloads[static_cast<std::size_t>(rank)] = std::move(payload);
  if (--entry.missing > 0) return;
  std::vector<std::string> payloads;
  Writer writer;
  writer.value(round);
  for (auto& part : entry.payloads) {
    writer.text(*part);
    payloads.push_back(std::move(*part));
  }
  rounds_.erase(round);
  lock.unlock();
  connections_.send_to_connected(FrameType::gathered, writer.take());
  deliver(round, std::move(payloads));
}

void Engine::deliver(std::int64_t round, std::vector<std::string> payloads) {
  {
    const std::scoped_lock lock(mutex_);
    gathered_.emplace(round, std::move(payloads));
  }
  changed_.notify_all();
}

void Engine::announce_failure() {
  if (std::exchange(is_announced_, true)) return;
  open_.clear();
  std::string announcement;
  {
    const std::scoped_lock lock(mutex_);
    announcement = announcement_;
  }
  connections_.send_to_connected(FrameType::failure, announcement);
  note_failure(rank_, false);
  if (courier_ != nullptr) courier_->abort();
}

/// Tells the others of a failure, and later that nothing of this rank's is on its way to them.
void Engine::settle_failure() {
  announce_failure();
  if (says_quiet_) return;
  const std::int32_t queues = courier_ != nullptr ? courier_->num_side_queues() : 0;
  for (std::int32_t queue = 0; queue < queues; ++queue)
    if (!device_.is_idle(side_queue(queue))) return;
  says_quiet_ = true;
  connections_.send_to_connected(FrameType::quiet, {});
  note_failure(rank_, true);
}

void Engine::note_failure(std::int32_t peer, bool is_done) {
  knows_failure_[static_cast<std::size_t>(peer)] = 1;
  if (is_done) is_done_[static_cast<std::size_t>(peer)] = 1;
  const auto all = [&](const std::vector<char>& flags) {
    for (std::int32_t other = 0; other < num_ranks_; ++other)
      if (flags[static_cast<std::size_t>(other)] == 0 && connections_.is_connected(other)) return false;
    return true;
  };
  is_known_ = is_announced_ && all(knows_failure_);
  is_quiet_ = says_quiet_ && all(is_done_);
}

void Engine::on_frame(std::int32_t peer, FrameType type, std::string payload) {
  Reader reader(payload);
  switch (type) {
    case FrameType::post:
      return on_post(peer, payload);
    case FrameType::announcement:
      return on_announcement(peer, reader.value<Word>());
    case FrameType::host_data:
      return on_host_data(peer, std::move(payload));
    case FrameType::gather: {
      const auto round = reader.value<std::int64_t>();
      return gather(round, peer, reader.text());
    }
    case FrameType::gathered: {
      const auto round = reader.value<std::int64_t>();
      std::vector<std::string> payloads;
      for (std::int32_t rank = 0; rank < num_ranks_; ++rank) payloads.push_back(reader.text());
      return deliver(round, std::move(payloads));
    }
    case FrameType::failure: {
      const auto origin = reader.value<std::int32_t>();
      fail_for(origin, reader.text());
      return note_failure(peer, false);
    }
    case FrameType::quiet:
      return note_failure(peer, true);
    case FrameType::leave:
      return on_leave(peer);
  }
}

void Engine::on_post(std::int32_t peer, const std::string& payload) {
  Reader reader(payload);
  const auto sequence = reader.value<Word>();
  Post post{.place = reader.value<Place>()};
  post.sizes = reader.values();
  post.offsets = reader.values();
  const auto exchange = unmatched_[static_cast<std::size_t>(peer)].extract(sequence);
  if (!exchange) {
    early_posts_[static_cast<std::size_t>(peer)].emplace(sequence, std::move(post));
    return;
  }
  match(*exchange.mapped(), parcel_of(exchange.mapped()->sends, peer), std::move(post));
}

void Engine::on_announcement(std::int32_t peer, Word sequence) {
  const auto exchange = awaited_recvs_[static_cast<std::size_t>(peer)].extract(sequence);
  if (exchange) parcel_of(exchange.mapped()->recvs, peer).is_announced = true;
}

void Engine::on_host_data(std::int32_t peer, std::string payload) {
  const auto sequence = Reader(payload).value<Word>();
  const auto exchange = awaited_recvs_[static_cast<std::size_t>(peer)].extract(sequence);
  if (!exchange) return;  // only after a failure
  payload.erase(0, sizeof(sequence));
  {
    const std::scoped_lock lock(mutex_);
    parcel_of(exchange.mapped()->recvs, peer).bytes = std::move(payload);
  }
  changed_.notify_all();
}

void Engine::on_leave(std::int32_t peer) {
  const auto index = static_cast<std::size_t>(peer);
  has_left_[index] = 1;
  const Word last = last_device_recvs_[index];
  const bool awaits_device = last > 0 && !courier_->may_have_arrived(peer, last);
  if (awaits_device || !awaited_recvs_[index].empty() || !unmatched_[index].empty())
    fail(fmt::format("rank {} shares an exchange with rank {}, which has left", rank_, peer));
}

void Engine::on_closed(std::int32_t peer) {
  note_failure(peer, true);
  if (has_left_[static_cast<std::size_t>(peer)] == 0)
    fail(fmt::format("rank {} lost its connection to rank {}, which has ended", rank_, peer));
}

}  // namespace marble::nccl

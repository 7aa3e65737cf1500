// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/stream_transport.hpp"

#include "transport/nccl/rendezvous.hpp"
#include "transport/nccl/wire.hpp"
#include "transport/report.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

namespace marble::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::int64_t kRegionPage = std::int64_t{2} << 20;

bool is_device(const Parcel& parcel) {
  return parcel.place == Place::device;
}

bool has_device_parcels(const Exchange& exchange) {
  return std::any_of(exchange.sends.begin(), exchange.sends.end(), is_device) ||
         std::any_of(exchange.recvs.begin(), exchange.recvs.end(), is_device);
}

std::vector<std::int64_t> sizes_of(std::span<const Message> messages) {
  std::vector<std::int64_t> sizes;
  for (const Message& message : messages) sizes.push_back(message.bytes);
  return sizes;
}

std::vector<Message> messages_of(std::span<const Message> messages, std::int32_t peer) {
  std::vector<Message> own;
  std::copy_if(messages.begin(), messages.end(), std::back_inserter(own),
               [&](const Message& message) { return message.peer == peer; });
  return own;
}

}  // namespace

StreamTransport::StreamTransport(const NcclOptions& options, Fabric fabric)
    : rank_(options.rank),
      num_ranks_(options.num_ranks),
      time_limit_(options.time_limit),
      fabric_(std::move(fabric)),
      device_(*fabric_.device),
      failure_(options.rank),
      staging_((options.staging_bytes + kRegionPage - 1) / kRegionPage * kRegionPage),
      mapped_(static_cast<std::size_t>(options.num_ranks)),
      num_sent_(static_cast<std::size_t>(options.num_ranks)),
      num_expected_(static_cast<std::size_t>(options.num_ranks)) {
  device_.select();
  Connections connections(meet(rank_, num_ranks_, options.address, options.port, time_limit_), time_limit_);
  engine_ = std::make_unique<Engine>(std::move(connections), device_, failure_, time_limit_, [this] { on_failure(); });
  try {
    choose_rung(options);
  } catch (const std::exception& error) {
    engine_->fail(error.what());
    engine_.reset();
    give_back_memory();
    throw;
  }
  Courier* const courier = copy_ ? static_cast<Courier*>(copy_.get()) : sendrecv_.get();
  engine_->set_courier(courier, num_side_queues_);
  watchdog_ = std::thread([this] { watch(); });
}

StreamTransport::~StreamTransport() {
  if (!failure_.happened() && !in_flight_.empty())
    engine_->fail(fmt::format("rank {} gave up '{}'", rank_, in_flight_.begin()->second->label));
  const bool is_past = drain() && (!failure_.happened() || is_left_alone());
  {
    const std::scoped_lock lock(mutex_);
    stops_ = true;
  }
  watchdog_woken_.notify_all();
  watchdog_.join();
  engine_.reset();
  sendrecv_.reset();
  // What a stream, or a peer, may still touch stays: those that are stuck for good.
  if (is_past)
    give_back_memory();
  else [[maybe_unused]]
    WordMemory* const kept = word_memory_.release();
}

/// True once the compute stream is past all waits and the side queues are empty. The watchdog lets them pass; the rest
/// is their own work.
bool StreamTransport::drain() {
  constexpr milliseconds kPause{1};
  constexpr std::chrono::seconds kLimit{30};
  std::optional<Deadline> deadline;
  device_.select();
  while (!has_passed_all() || !is_idle()) {
    if (!deadline && failure_.happened()) deadline = steady_clock::now() + kLimit;
    if (deadline && steady_clock::now() > *deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

/// True once no peer will write to this rank's memory. After a failure some may be about to.
bool StreamTransport::is_left_alone() const {
  constexpr milliseconds kPause{1};
  constexpr std::chrono::seconds kLimit{10};
  const Deadline deadline = steady_clock::now() + kLimit;
  while (!engine_->is_quiet()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

bool StreamTransport::is_idle() {
  for (std::int32_t queue = 0; queue < num_side_queues_; ++queue)
    if (!device_.is_idle(side_queue(queue))) return false;
  return true;
}

void StreamTransport::give_back_memory() noexcept {
  unmap_regions();
  if (word_memory_) device_.unregister_words(word_memory_->data());
}

// Making it ----------------------------------------------------------------------------------------------------------

void StreamTransport::choose_rung(const NcclOptions& options) {
  if (num_ranks_ == 1) {
    name_ = description_ = "nccl";
    return use_words(WordMemory::own(Words::bytes(1, false)), false);
  }
  const Capability own{options.rung, host_name(), fabric_.no_copy, fabric_.no_library};
  std::vector<Capability> ranks;
  for (const std::string& bytes : engine_->all_gather(to_bytes(own), "choice of a rung"))
    ranks.push_back(capability_from(bytes));
  Choice choice = choose(ranks);
  if (choice.rung == Rung::copy) choice = choose(ranks, set_up_copy());
  if (choice.rung == Rung::sendrecv) set_up_sendrecv();
  name_ = fmt::format("nccl-{}", to_string(choice.rung));
  description_ = choice.rung == Rung::copy
                     ? fmt::format("nccl: rung copy, copy engines between {} ranks of one host", num_ranks_)
                     : fmt::format("nccl: rung sendrecv, {} ({})", fabric_.library->describe(), choice.why_not_better);
}

/// Runs `fn` here, then meets the other ranks: throws BackendError on all when it threw on one.
template <typename Fn>
void StreamTransport::on_all_ranks(std::string_view what, Fn&& fn) {
  std::string error;
  try {
    fn();
  } catch (const Error& thrown) {
    error = thrown.what();
  }
  const std::vector<std::string> errors = engine_->all_gather(error, what);
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    if (!errors[rank].empty()) throw BackendError(fmt::format("rank {}: {}", rank, errors[rank]));
}

void StreamTransport::make_side_queues(std::int32_t count) {
  device_.make_side_queues(count);
  num_side_queues_ = count;
}

/// Why it cannot be done, on this rank or another; empty when it is done.
std::string StreamTransport::set_up_copy() {
  try {
    on_all_ranks("side queues", [&] { make_side_queues(num_ranks_); });
    share_words();
    map_regions(0);
    on_all_ranks("a look at the queues", [&] { check_queues(); });
    copy_ = std::make_unique<CopyCourier>(device_, words_, rank_, num_ranks_);
    copy_->set_regions(mapped_);
    return {};
  } catch (const BackendError& error) {
    unmap_regions();
    return error.what();
  }
}

void StreamTransport::set_up_sendrecv() {
  use_words(WordMemory::own(Words::bytes(num_ranks_, false)), false);
  std::string id;
  on_all_ranks("an id for the communicator", [&] {
    if (rank_ == 0) id = fabric_.library->make_id();
  });
  id = engine_->all_gather(id, "the communicator's id").front();
  on_all_ranks("the making of a communicator", [&] {
    make_side_queues(1);
    sendrecv_ = fabric_.library->join(id, rank_, num_ranks_, failure_, steady_clock::now() + time_limit_);
  });
}

void StreamTransport::use_words(std::unique_ptr<WordMemory> memory, bool all_rows) {
  if (word_memory_) device_.unregister_words(word_memory_->data());
  device_.register_words(memory->data(), memory->bytes());
  const std::scoped_lock lock(mutex_);
  word_memory_ = std::move(memory);
  words_ = Words(word_memory_->data(), rank_, num_ranks_, all_rows);
}

void StreamTransport::share_words() {
  const std::int64_t bytes = Words::bytes(num_ranks_, true);
  std::unique_ptr<WordMemory> memory;
  on_all_ranks("shared memory", [&] {
    if (rank_ == 0) memory = WordMemory::create_shared(bytes);
  });
  const std::string name = engine_->all_gather(memory ? memory->name() : "", "the name of shared memory").front();
  on_all_ranks("opening shared memory", [&] {
    if (rank_ != 0) memory = WordMemory::open_shared(name, bytes);
    use_words(std::move(memory), true);
  });
  word_memory_->forget_name();
}

/// Streams can share a hardware queue, where a wait holds up all that comes after it. Then copies would wait for what
/// they are to bring, so a side stream that shares the compute stream's is changed for another.
void StreamTransport::check_queues() {
  constexpr int kTries = 8;
  for (std::int32_t peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    const Queue side = side_queue(peer);
    int tries = 1;
    while (!passes(kCompute, side) || !passes(side, kCompute)) {
      if (++tries > kTries) throw BackendError("copies do not run while the compute stream waits");
      device_.renew(side);
    }
  }
}

/// True when the work of one queue is done while the other waits.
bool StreamTransport::passes(Queue waiting, Queue working) {
  constexpr milliseconds kLimit{200};
  Word* const word = words_.unstaged();
  device_.synchronize(kCompute);
  device_.enqueue(waiting, std::array{WordOp{WordOp::Kind::wait, word, 1}});
  device_.copy(working, region_ + kRegionPage / 2, region_, kRegionPage / 2);
  device_.enqueue(working, std::array{WordOp{WordOp::Kind::write, word, 1}});
  const Deadline deadline = steady_clock::now() + kLimit;
  while (load(word) == 0 && steady_clock::now() < deadline) std::this_thread::yield();
  const bool is_done = load(word) != 0;
  store(word, 1);
  device_.synchronize(waiting);
  device_.synchronize(working);
  store(word, 0);
  return is_done;
}

void StreamTransport::map_regions(std::int64_t reserved_bytes) {
  MemoryHandle handle{};
  on_all_ranks("memory for receives", [&] {
    region_ = static_cast<std::byte*>(device_.allocate(staging_.capacity() + kRegionPage + reserved_bytes));
    reserved_bytes_ = reserved_bytes;
    handle = device_.export_memory(region_);
  });
  const auto handles = engine_->all_gather(Writer().value(handle).take(), "memory handles");
  on_all_ranks("mapping peers' memory", [&] {
    for (std::int32_t peer = 0; peer < num_ranks_; ++peer)
      if (peer != rank_)
        mapped_[static_cast<std::size_t>(peer)] = static_cast<std::byte*>(
            device_.open_memory(Reader(handles[static_cast<std::size_t>(peer)]).value<MemoryHandle>()));
  });
}

void StreamTransport::unmap_regions() noexcept {
  for (std::byte*& region : mapped_)
    if (region != nullptr) device_.close_memory(std::exchange(region, nullptr));
  if (region_ != nullptr) device_.free(std::exchange(region_, nullptr));
  reserved_bytes_ = 0;
}

void StreamTransport::reserve(std::int64_t bytes) {
  failure_.check();
  require(bytes >= 0, "{} bytes of reserved memory", bytes);
  require(in_flight_.empty(), "memory is reserved with {} exchanges in flight", in_flight_.size());
  std::int64_t largest = 0;
  for (const std::string& wanted : engine_->all_gather(Writer().value(bytes).take(), "reserved memory"))
    largest = std::max(largest, Reader(wanted).value<std::int64_t>());
  if (!copy_ || largest <= reserved_bytes_) return;
  // A little more than asked for, so that layouts which grow from step to step rarely wait here.
  const std::int64_t grown = std::max(largest, reserved_bytes_ + reserved_bytes_ / 2);
  try {
    device_.select();
    on_all_ranks("the end of earlier exchanges", [&] {
      device_.synchronize(kCompute);
      for (std::int32_t queue = 0; queue < num_side_queues_; ++queue) device_.synchronize(side_queue(queue));
    });
    failure_.check();
    for (std::byte*& region : mapped_)
      if (region != nullptr) device_.close_memory(std::exchange(region, nullptr));
    on_all_ranks("unmapping peers' memory", [] {});
    unmap_regions();
    map_regions((grown + kRegionPage - 1) / kRegionPage * kRegionPage);
  } catch (const Error& error) {
    engine_->fail(error.what());
    throw;
  }
  copy_->set_regions(mapped_);
}

void* StreamTransport::reserved() const {
  return reserved_bytes_ > 0 ? region_ + staging_.capacity() + kRegionPage : nullptr;
}

// Exchanges ----------------------------------------------------------------------------------------------------------

Place StreamTransport::place_of(std::span<const Message> messages, std::string_view label) const {
  std::optional<Place> place;
  for (const Message& message : messages) {
    if (message.bytes == 0) continue;
    const Place own = device_.is_device_memory(message.data) ? Place::device : Place::host;
    require(!place || *place == own, "messages between ranks {} and {} in '{}' lie partly in host memory", rank_,
            message.peer, label);
    place = own;
  }
  return place.value_or(Place::device);
}

template <typename P>
std::vector<P> StreamTransport::parcels(std::span<const Message> messages, std::vector<Word>& counts,
                                        std::string_view label) const {
  std::vector<P> result;
  std::vector<std::size_t> slot(static_cast<std::size_t>(num_ranks_));  // 1 + index into result
  for (const Message& message : messages) {
    if (message.peer == rank_) continue;
    const auto peer = static_cast<std::size_t>(message.peer);
    if (slot[peer] == 0) {
      P& parcel = result.emplace_back();
      parcel.peer = message.peer;
      parcel.sequence = ++counts[peer];
      slot[peer] = result.size();
    }
    result[slot[peer] - 1].messages.push_back(message);
  }
  for (P& parcel : result) parcel.place = place_of(parcel.messages, label);
  return result;
}

std::int64_t StreamTransport::begin(std::span<const Message> sends, std::span<const Message> recvs,
                                    std::string_view label) {
  failure_.check();
  check_messages(sends, num_ranks_, label);
  check_messages(recvs, num_ranks_, label);
  device_.select();
  require(!device_.is_capturing(), "'{}' begins while its stream is captured into a graph, which exchanges cannot be",
          label);
  const auto exchange = std::make_shared<Exchange>();
  exchange->label = label;
  std::vector<Word> sent = num_sent_, expected = num_expected_;
  exchange->sends = parcels<Outgoing>(sends, sent, label);
  exchange->recvs = parcels<Incoming>(recvs, expected, label);
  exchange->number = has_device_parcels(*exchange) ? num_exchanges_ + 1 : 0;
  place_recvs(*exchange);
  copy_own(messages_of(sends, rank_), messages_of(recvs, rank_), label);
  for (Outgoing& parcel : exchange->sends)
    if (!is_device(parcel))
      for (const Message& message : parcel.messages)
        parcel.bytes.append(static_cast<const char*>(message.data), static_cast<std::size_t>(message.bytes));
  num_sent_ = std::move(sent);
  num_expected_ = std::move(expected);
  if (exchange->number > 0) enqueue_begin(*exchange);
  if (!exchange->sends.empty() || !exchange->recvs.empty()) engine_->begin(exchange);
  in_flight_.emplace(next_ticket_, exchange);
  return next_ticket_++;
}

/// Where in this rank's region each device message arrives.
void StreamTransport::place_recvs(Exchange& exchange) {
  if (!copy_) return;
  const auto* const reserved = static_cast<const std::byte*>(this->reserved());
  const auto is_reserved = [&](const Message& message) {
    const auto* const data = static_cast<const std::byte*>(message.data);
    return reserved != nullptr && data >= reserved && data + message.bytes <= reserved + reserved_bytes_;
  };
  for (Incoming& parcel : exchange.recvs) {
    if (!is_device(parcel)) continue;
    std::int64_t staged = 0;
    for (const Message& message : parcel.messages)
      if (!is_reserved(message)) staged += message.bytes;
    std::int64_t offset = staged > 0 ? stage(staged, exchange) : 0;
    for (const Message& message : parcel.messages) {
      if (is_reserved(message)) {
        parcel.offsets.push_back(static_cast<const std::byte*>(message.data) - region_);
        continue;
      }
      parcel.offsets.push_back(offset);
      if (message.bytes > 0) exchange.staged.push_back({message, region_ + offset});
      offset += message.bytes;
    }
  }
}

std::int64_t StreamTransport::stage(std::int64_t bytes, const Exchange& exchange) {
  constexpr std::chrono::microseconds kPause{50};
  while (true) {
    staging_.reclaim(load(words_.unstaged()));
    if (const auto offset = staging_.take(bytes, exchange.number)) return *offset;
    if (bytes > staging_.capacity() || !staging_.next_wait()) {
      staging_.give_back(exchange.number, 0);
      throw InvalidArgument(fmt::format(
          "'{}' receives {} bytes outside reserved memory, and of {} bytes of staging not enough are free; reserve "
          "memory, or wait for exchanges begun before",
          exchange.label, bytes, staging_.capacity()));
    }
    std::this_thread::sleep_for(kPause);
    failure_.check();
  }
}

void StreamTransport::copy_own(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) {
  try {
    check_sizes(rank_, rank_, label, sizes_of(recvs), sizes_of(sends));
  } catch (const TransportError& error) {
    engine_->fail(error.what());
    failure_.check();
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (sends[i].bytes == 0) continue;
    if (place_of(sends.subspan(i, 1), label) == Place::host && place_of(recvs.subspan(i, 1), label) == Place::host)
      std::memcpy(recvs[i].data, sends[i].data, static_cast<std::size_t>(sends[i].bytes));
    else
      device_.copy(kCompute, recvs[i].data, sends[i].data, sends[i].bytes);
  }
}

void StreamTransport::enqueue_begin(Exchange& exchange) {
  num_exchanges_ = exchange.number;
  exchange.begun = device_.mark(kCompute);
  if (!copy_) return;
  std::vector<WordOp> credits;
  for (const Incoming& parcel : exchange.recvs)
    if (is_device(parcel)) credits.push_back({WordOp::Kind::write, words_.credit(parcel.peer), parcel.sequence});
  if (!credits.empty()) device_.enqueue(kCompute, credits);
}

void StreamTransport::wait(std::int64_t ticket) {
  failure_.check();
  const auto found = in_flight_.find(ticket);
  require(found != in_flight_.end(), "rank {}: ticket {} is not in flight", rank_, ticket);
  const std::shared_ptr<Exchange> exchange = std::move(found->second);
  in_flight_.erase(found);
  device_.select();
  if (exchange->number > 0) enqueue_wait(exchange);
  finish_host(*exchange);
  for (const Incoming& parcel : exchange->recvs)
    for (const Message& message : parcel.messages) bytes_received_ += message.bytes;
}

void StreamTransport::enqueue_wait(const std::shared_ptr<Exchange>& exchange) {
  // The compute stream must wait for nothing that this process has yet to ask for: a call that waits for the device on
  // this thread would hold that up.
  if (sendrecv_ || std::any_of(exchange->sends.begin(), exchange->sends.end(), is_device))
    engine_->wait_started(*exchange);
  const Word number = num_waits_ + 1;
  {
    const std::scoped_lock lock(mutex_);
    waits_.push_back({number, exchange});
    num_waits_ = number;
  }
  std::vector<WordOp> ops = {{WordOp::Kind::write, words_.wait_reached(), number}};
  if (sendrecv_) {
    device_.enqueue(kCompute, ops);
    device_.follow(kCompute, *exchange->done);
    ops.clear();
  } else {
    for (const Incoming& parcel : exchange->recvs)
      if (is_device(parcel)) ops.push_back({WordOp::Kind::wait, words_.arrived(parcel.peer), parcel.sequence});
    for (const Outgoing& parcel : exchange->sends)
      if (is_device(parcel)) ops.push_back({WordOp::Kind::wait, words_.sent(parcel.peer), parcel.sequence});
  }
  ops.push_back({WordOp::Kind::write, words_.wait_passed(), number});
  device_.enqueue(kCompute, ops);
  if (exchange->staged.empty()) return;
  for (const Staged& staged : exchange->staged)
    device_.copy(kCompute, staged.target.data, staged.source, staged.target.bytes);
  device_.enqueue(kCompute, std::array{WordOp{WordOp::Kind::write, words_.unstaged(), number}});
  staging_.give_back(exchange->number, number);
}

void StreamTransport::finish_host(Exchange& exchange) {
  engine_->wait_host(exchange);
  for (const Incoming& parcel : exchange.recvs) {
    if (is_device(parcel)) continue;
    const char* source = parcel.bytes->data();
    for (const Message& message : parcel.messages) {
      if (message.bytes > 0) std::memcpy(message.data, source, static_cast<std::size_t>(message.bytes));
      source += message.bytes;
    }
  }
}

void StreamTransport::agree(std::uint64_t value, std::string_view what) {
  failure_.check();
  std::vector<std::uint64_t> values;
  for (const std::string& bytes :
       engine_->all_gather(Writer().value(value).take(), fmt::format("agreement on {}", what)))
    values.push_back(Reader(bytes).value<std::uint64_t>());
  check_agreement(values, what);
}

// The watchdog -------------------------------------------------------------------------------------------------------

void StreamTransport::watch() {
  constexpr milliseconds kLongest{50};
  const milliseconds pause = std::clamp(time_limit_ / 20, milliseconds(1), kLongest);
  constexpr std::chrono::seconds kHearingLimit{1};
  Word stuck = 0;
  auto since = steady_clock::now();
  std::optional<Deadline> heard;
  std::unique_lock lock(mutex_);
  while (!stops_) {
    watchdog_woken_.wait_for(lock, failure_.happened() ? milliseconds(1) : pause, [&] { return stops_; });
    const Word reached = load(words_.wait_reached()), passed = load(words_.wait_passed());
    while (!waits_.empty() && waits_.front().number <= passed) waits_.pop_front();
    if (failure_.happened()) {
      // Again and again: smaller values may still be written over the releasing ones. Side queues then write to peers
      // without their credit, which is harmless once those know that their results are void.
      words_.release_compute();
      if (!heard) heard = steady_clock::now() + kHearingLimit;
      if (engine_->is_known() || steady_clock::now() > *heard) words_.release_side();
      continue;
    }
    const auto now = steady_clock::now();
    if (reached <= passed || reached != stuck) {
      stuck = reached > passed ? reached : 0;
      since = now;
    } else if (now - since >= time_limit_ && !waits_.empty()) {
      const std::string reason = describe_stuck(waits_.front());
      lock.unlock();
      engine_->fail(reason);
      lock.lock();
    }
  }
}

std::string StreamTransport::describe_stuck(const Wait& wait) const {
  for (const Incoming& parcel : wait.exchange->recvs)
    if (is_device(parcel) && load(words_.arrived(parcel.peer)) < parcel.sequence)
      return describe_timeout(rank_, time_limit_, parcel.sizes(), "from", parcel.peer, wait.exchange->label);
  for (const Outgoing& parcel : wait.exchange->sends)
    if (is_device(parcel) && load(words_.sent(parcel.peer)) < parcel.sequence)
      return describe_timeout(rank_, time_limit_, parcel.sizes(), "to", parcel.peer, wait.exchange->label);
  return fmt::format("rank {} waited {:.1f} s in '{}' for its own device", rank_,
                     std::chrono::duration<double>(time_limit_).count(), wait.exchange->label);
}

void StreamTransport::on_failure() {
  const std::scoped_lock lock(mutex_);
  if (word_memory_) words_.release_compute();
}

}  // namespace marble::nccl

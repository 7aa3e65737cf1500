// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// How a stream transport is made and ends, and the memory that it shares with peers.

#include "transport/nccl/rendezvous.hpp"
#include "transport/nccl/sendrecv_courier.hpp"
#include "transport/nccl/stream_transport.hpp"
#include "transport/nccl/wire.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace marble::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Room before reserved memory: what check_queues copies, so that a region is never empty.
constexpr std::int64_t kRegionPage = std::int64_t{2} << 20;

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
  engine_->set_courier(courier_.get());
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
  if (is_past) {
    drop_courier();
    give_back_memory();
  } else {
    // Of a stream, or a peer, that is stuck for good: what it may still touch stays.
    [[maybe_unused]] const WordMemory* const kept = word_memory_.release();
    [[maybe_unused]] const Courier* const kept_too = courier_.release();
  }
}

/// True once the compute stream is past all waits and everything is done that queues were asked for. The watchdog lets
/// them pass; the rest is their own work.
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

/// True when all is done that queues were asked for. The compute stream may have credits yet to write, and staged
/// messages to copy; while it is captured it cannot be asked.
bool StreamTransport::is_idle() {
  if (!device_.is_capturing() && !device_.is_idle(kCompute)) return false;
  for (std::int32_t queue = 0; courier_ && queue < courier_->num_side_queues(); ++queue)
    if (!device_.is_idle(side_queue(queue))) return false;
  return true;
}

void StreamTransport::give_back_memory() noexcept {
  unmap_regions();
  if (word_memory_) device_.unregister_words(word_memory_->data());
}

void StreamTransport::choose_rung(const NcclOptions& options) {
  if (num_ranks_ == 1) {
    name_ = description_ = "nccl";
    return use_words(WordMemory::own(Words::bytes(1, false)), false);
  }
  std::vector<Capability> ranks;
  for (const std::string& bytes : engine_->all_gather(to_bytes(capability(options)), "choice of a rung"))
    ranks.push_back(capability_from(bytes));
  std::map<Rung, std::string> failed;
  Choice choice;
  while (true) {
    choice = choose(ranks, failed);
    std::string error = set_up(choice.rung);
    if (error.empty()) break;
    drop_courier();
    failed.emplace(choice.rung, std::move(error));
  }
  name_ = fmt::format("nccl-{}", to_string(choice.rung));
  const std::string means = copy_ != nullptr ? fmt::format("copy engines between {} ranks of one host", num_ranks_)
                                             : fabric_.library->describe();
  const std::string why = choice.why_not_better.empty() ? "" : fmt::format(" ({})", choice.why_not_better);
  description_ = fmt::format("nccl: rung {}, {}{}", to_string(choice.rung), means, why);
}

Capability StreamTransport::capability(const NcclOptions& options) const {
  Capability own{.wanted = options.rung, .host = host_name(), .staging_bytes = staging_.capacity()};
  own.no_copy = fabric_.no_waits;
  own.no_sendrecv = fabric_.no_library;
  own.no_put = !fabric_.no_waits.empty() ? fabric_.no_waits : fabric_.no_library;
  if (own.no_put.empty()) own.no_put = fabric_.library->why_no_put();
  return own;
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

/// Why it cannot be done, on this rank or another; empty when it is done.
std::string StreamTransport::set_up(Rung rung) {
  try {
    if (rung == Rung::copy)
      set_up_copy();
    else if (rung == Rung::put)
      set_up_put();
    else
      set_up_sendrecv();
    return {};
  } catch (const BackendError& error) {
    return error.what();
  }
}

void StreamTransport::set_up_copy() {
  share_words();
  auto courier = std::make_unique<CopyCourier>(device_, words_, rank_, num_ranks_);
  copy_ = courier.get();
  use_courier(std::move(courier));
  map_regions(0);
  on_all_ranks("a look at the queues", [&] { check_queues(); });
}

void StreamTransport::set_up_put() {
  use_words(WordMemory::own(Words::bytes(num_ranks_, false)), false);
  const std::int64_t outbox_bytes = std::max(staging_.capacity(), kRegionPage);
  auto courier = std::make_unique<PutCourier>(device_, words_, rank_, num_ranks_, outbox_bytes);
  put_ = courier.get();
  use_courier(std::move(courier));
  auto data = join(Traffic::put);
  put_->set_communicators(std::move(data), join(Traffic::put));
  on_all_ranks("memory for words", [&] { put_->allocate(); });
  on_all_ranks("windows of words", [&] { put_->open(steady_clock::now() + time_limit_); });
  map_regions(0);
  on_all_ranks("a look at the queues", [&] { check_queues(); });
  on_all_ranks("first puts", [&] { put_->try_puts(); });
}

void StreamTransport::set_up_sendrecv() {
  use_words(WordMemory::own(Words::bytes(num_ranks_, false)), false);
  use_courier(std::make_unique<SendRecvCourier>(device_, words_, rank_, join(Traffic::send_recv)));
}

void StreamTransport::use_courier(std::unique_ptr<Courier> courier) {
  {
    const std::scoped_lock lock(mutex_);
    courier_ = std::move(courier);
  }
  on_all_ranks("side queues", [&] { device_.make_side_queues(courier_->num_side_queues()); });
}

void StreamTransport::drop_courier() noexcept {
  unmap_regions();
  const std::scoped_lock lock(mutex_);
  courier_.reset();
  copy_ = nullptr;
  put_ = nullptr;
}

std::unique_ptr<Communicator> StreamTransport::join(Traffic traffic) {
  // A library takes its time, most of it once in a process, even where waits are to be short.
  constexpr std::chrono::seconds kPatience{30};
  std::string id;
  on_all_ranks("an id for a communicator", [&] {
    if (rank_ == 0) id = fabric_.library->make_id();
  });
  id = engine_->all_gather(id, "the communicator's id").front();
  std::unique_ptr<Communicator> communicator;
  on_all_ranks("the making of a communicator", [&] {
    const Deadline deadline = steady_clock::now() + std::max<milliseconds>(time_limit_, kPatience);
    communicator = fabric_.library->join(traffic, id, rank_, num_ranks_, failure_, deadline);
  });
  return communicator;
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
/// they are to bring, so a side stream that shares another's is changed for a new one.
void StreamTransport::check_queues() {
  constexpr int kTries = 8;
  for (int tries = 0; tries < kTries; ++tries) {
    bool all_pass = true;
    for (const auto& [waiting, working] : courier_->independent_queues()) {
      if (passes(waiting, working)) continue;
      all_pass = false;
      device_.renew(working == kCompute ? waiting : working);
    }
    if (all_pass) return;
  }
  throw BackendError("copies do not run while the compute stream waits");
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
  const std::int64_t bytes = staging_.capacity() + kRegionPage + reserved_bytes;
  MemoryHandle handle{};
  on_all_ranks("memory for receives", [&] {
    region_ = put_ != nullptr ? put_->allocate_region(bytes) : static_cast<std::byte*>(device_.allocate(bytes));
    reserved_bytes_ = reserved_bytes;
    if (copy_ != nullptr) handle = device_.export_memory(region_);
  });
  if (put_ != nullptr)
    return on_all_ranks("a window for receives", [&] { put_->open_region(steady_clock::now() + time_limit_); });
  const auto handles = engine_->all_gather(Writer().value(handle).take(), "memory handles");
  on_all_ranks("mapping peers' memory", [&] {
    for (std::int32_t peer = 0; peer < num_ranks_; ++peer)
      if (peer != rank_)
        mapped_[static_cast<std::size_t>(peer)] = static_cast<std::byte*>(
            device_.open_memory(Reader(handles[static_cast<std::size_t>(peer)]).value<MemoryHandle>()));
  });
  copy_->set_regions(mapped_);
}

void StreamTransport::unmap_regions() noexcept {
  for (std::byte*& region : mapped_)
    if (region != nullptr) device_.close_memory(std::exchange(region, nullptr));
  std::byte* const region = std::exchange(region_, nullptr);
  if (put_ != nullptr)
    put_->close_region();
  else if (region != nullptr)
    device_.free(region);
  reserved_bytes_ = 0;
}

void StreamTransport::reserve(std::int64_t bytes) {
  failure_.check();
  require(bytes >= 0, "{} bytes of reserved memory", bytes);
  require(in_flight_.empty(), "memory is reserved with {} exchanges in flight", in_flight_.size());
  std::int64_t largest = 0;
  for (const std::string& wanted : engine_->all_gather(Writer().value(bytes).take(), "reserved memory"))
    largest = std::max(largest, Reader(wanted).value<std::int64_t>());
  if (!reserves() || largest <= reserved_bytes_) return;
  // A little more than asked for, so that layouts which grow from step to step rarely wait here.
  const std::int64_t grown = std::max(largest, reserved_bytes_ + reserved_bytes_ / 2);
  try {
    device_.select();
    on_all_ranks("the end of earlier exchanges", [&] {
      device_.synchronize(kCompute);
      for (std::int32_t queue = 0; queue < courier_->num_side_queues(); ++queue) device_.synchronize(side_queue(queue));
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
}

void* StreamTransport::reserved() const {
  return reserved_bytes_ > 0 ? region_ + staging_.capacity() + kRegionPage : nullptr;
}

}  // namespace marble::nccl

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "backend/decorator.hpp"
#include "trace/recorder.hpp"
#include "transport/decorator.hpp"

#include "marble/trace.hpp"

#include <map>
#include <span>
#include <utility>

namespace marble {
namespace {

using Track = Recorder::Track;

class TracedBackend final : public BackendDecorator {
 public:
  TracedBackend(Backend& inner, Recorder& recorder) : BackendDecorator(inner), recorder_(recorder) {}

  void forward(const BoundPlan& plan, std::int32_t work, const ForwardTensors& tensors,
               const AttentionOptions& options) override {
    traced_work(work, tensors.k.rows, [&] { inner_.forward(plan, work, tensors, options); });
  }
  void backward(const BoundPlan& plan, std::int32_t work, const BackwardTensors& tensors,
                const AttentionOptions& options) override {
    traced_work(work, tensors.k.rows, [&] { inner_.backward(plan, work, tensors, options); });
  }
  void prepare_backward(const TensorView& out, const TensorView& dout, const TensorView& delta,
                        std::int64_t valid_rows) override {
    kernel("delta", out.bytes(), [&] { inner_.prepare_backward(out, dout, delta, valid_rows); });
  }
  void finish_dq(const RankPlan& plan, const void* dq_accumulator, const TensorView& dq) override {
    kernel("finish dq", dq.bytes(), [&] { inner_.finish_dq(plan, dq_accumulator, dq); });
  }
  void cast(const TensorView& source, const TensorView& target) override {
    kernel("cast", target.bytes(), [&] { inner_.cast(source, target); });
  }
  void copy(std::span<const Copy> copies) override {
    std::int64_t bytes = 0;
    for (const Copy& copy : copies) bytes += copy.target.bytes();
    kernel("copy", bytes, [&] { inner_.copy(copies); });
  }
  void zero(void* data, std::int64_t bytes) override {
    kernel("zero", bytes, [&] { inner_.zero(data, bytes); });
  }

 private:
  template <typename Call>
  void traced_work(std::int32_t work, std::int64_t keys, Call&& call) {
    const std::int64_t event =
        recorder_.begin(Track::stream, "work", "work " + std::to_string(work), {{"work", work}, {"key_rows", keys}});
    call();
    recorder_.end(event);
  }
  template <typename Call>
  void kernel(const char* name, std::int64_t bytes, Call&& call) {
    const std::int64_t event = recorder_.begin(Track::stream, "kernel", name, {{"bytes", bytes}});
    call();
    recorder_.end(event);
  }

  Recorder& recorder_;
};

class TracedTransport final : public TransportDecorator {
 public:
  TracedTransport(Transport& inner, Recorder& recorder) : TransportDecorator(inner), recorder_(recorder) {}

  std::int64_t begin(std::span<const Message> sends, std::span<const Message> recvs, std::string_view label) override {
    const Track track = label.ends_with("return") ? Track::returns : Track::fetches;
    const std::int64_t event = recorder_.begin(track, "exchange", std::string(label),
                                               {{"sent", bytes_of(sends)}, {"received", bytes_of(recvs)}});
    const std::int64_t ticket = inner_.begin(sends, recvs, label);
    if (event >= 0) events_[ticket] = {event, std::string(label)};
    return ticket;
  }
  void wait(std::int64_t ticket) override {
    const auto found = events_.find(ticket);
    if (found == events_.end()) return inner_.wait(ticket);
    const std::int64_t wait = recorder_.begin(Track::stream, "wait", "wait for " + found->second.label);
    inner_.wait(ticket);
    recorder_.end(wait);
    recorder_.end(found->second.event);
    events_.erase(found);
  }

 private:
  struct Begun {
    std::int64_t event = -1;
    std::string label;
  };

  static std::int64_t bytes_of(std::span<const Message> messages) {
    std::int64_t bytes = 0;
    for (const Message& message : messages) bytes += message.bytes;
    return bytes;
  }

  Recorder& recorder_;
  std::map<std::int64_t, Begun> events_;  // by ticket
};

class Steps final : public StepObserver {
 public:
  explicit Steps(Recorder& recorder) : recorder_(recorder) {}

  void begin_pass(std::string_view pass) override { pass_ = recorder_.begin(Track::stream, "pass", std::string(pass)); }
  void begin_step(std::int64_t step) override {
    step_ = recorder_.begin(Track::stream, "step", "step " + std::to_string(step), {{"step", step}});
  }
  void end_step() override { recorder_.end(std::exchange(step_, -1)); }
  void end_pass() override { recorder_.end(std::exchange(pass_, -1)); }

 private:
  Recorder& recorder_;
  std::int64_t pass_ = -1, step_ = -1;
};

}  // namespace

struct RankTrace::Impl {
  Impl(Backend& inner_backend, Transport& inner_transport)
      : recorder(inner_backend, inner_transport.rank()),
        backend(inner_backend, recorder),
        transport(inner_transport, recorder),
        steps(recorder) {}

  Recorder recorder;
  TracedBackend backend;
  TracedTransport transport;
  Steps steps;
};

RankTrace::RankTrace(Backend& backend, Transport& transport) : impl_(std::make_unique<Impl>(backend, transport)) {}
RankTrace::~RankTrace() = default;

Backend& RankTrace::backend() {
  return impl_->backend;
}
Transport& RankTrace::transport() {
  return impl_->transport;
}
StepObserver& RankTrace::observer() {
  return impl_->steps;
}
void RankTrace::record(bool on) {
  impl_->recorder.record(on);
}

std::string RankTrace::gather() {
  Transport& transport = impl_->transport;
  std::string events = impl_->recorder.take();
  auto size = static_cast<std::int64_t>(events.size());
  const auto message = [](std::int32_t peer, void* data, std::int64_t bytes) { return Message{peer, data, bytes}; };
  if (transport.rank() != 0) {
    const Message parts[] = {message(0, &size, sizeof(size)), message(0, events.data(), size)};
    for (const Message& part : parts) transport.wait(transport.begin({&part, 1}, {}, "trace"));
    return {};
  }
  for (std::int32_t peer = 1; peer < transport.num_ranks(); ++peer) {
    const Message length = message(peer, &size, sizeof(size));
    transport.wait(transport.begin({}, {&length, 1}, "trace"));
    std::string others(static_cast<std::size_t>(size), ' ');
    const Message text = message(peer, others.data(), size);
    transport.wait(transport.begin({}, {&text, 1}, "trace"));
    events += ",\n" + others;
  }
  return events;
}

std::string trace_document(std::string_view events) {
  return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + std::string(events) + "\n]}\n";
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a rank did and when, as events of the Chrome trace format, which Perfetto opens: a process is a rank; its
// threads are the backend's stream (passes, in them steps, in them works, kernels and waits), the fetches and the
// returns. Times are those of the backend's timeline, so of the device. An exchange's event begins where the stream
// began it and ends where the stream was past waiting for it; it may have arrived earlier, and then the wait's own
// event is short.

#include "marble/attention.hpp"
#include "marble/backend.hpp"
#include "marble/transport.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace marble {

/// Takes the events of all ranks, JSON objects separated by commas. Called on rank 0.
using TraceSink = std::function<void(std::string_view events)>;

/// The document that a list of events makes.
[[nodiscard]] std::string trace_document(std::string_view events);

/// Stands between an executor and its backend and transport: bind a layer to backend() and transport(), and let it be
/// observed by observer(). Records nothing until told to.
class RankTrace {
 public:
  /// Both must outlive it.
  RankTrace(Backend& backend, Transport& transport);
  ~RankTrace();
  RankTrace(const RankTrace&) = delete;
  RankTrace& operator=(const RankTrace&) = delete;

  [[nodiscard]] Backend& backend();
  [[nodiscard]] Transport& transport();
  [[nodiscard]] StepObserver& observer();

  void record(bool on);
  /// What was recorded, of all ranks on rank 0 and empty elsewhere; collective. The transport has access to host
  /// memory.
  [[nodiscard]] std::string gather();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace marble

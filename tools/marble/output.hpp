// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What commands print and write: one JSON document on standard output, files that appear only when complete, and the
// parts of a report that several commands share.

#include "flags.hpp"

#include "marble/layout.hpp"
#include "marble/trace.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace marble::cli {

/// Keys stay in the order written.
using Json = nlohmann::ordered_json;

void print_json(const Json& document);

/// The whole file. Throws InvalidArgument naming it when it cannot be read.
[[nodiscard]] std::vector<std::byte> read_bytes(const std::filesystem::path& file);

/// Writes beside `file`, then renames: a failure leaves no part of it. Throws InvalidArgument when it cannot be
/// written.
void write_bytes(const std::filesystem::path& file, std::span<const std::byte> bytes);

/// The file of --trace, written when all is done; an empty name is no file.
class TraceFile {
 public:
  /// Throws InvalidArgument when a file could not be written there.
  explicit TraceFile(std::filesystem::path file);

  /// What takes the events of each run; null for no file.
  [[nodiscard]] TraceSink sink();
  /// On rank 0, which alone got events.
  void write() const;

 private:
  std::filesystem::path file_;
  std::string events_;
};

/// 1234567 as "1,234,567".
[[nodiscard]] std::string grouped(std::int64_t value);

/// {tokens, samples, spans, legal_pairs, tokens_by_mode}; legal pairs without a window.
[[nodiscard]] Json layout_json(const Layout& layout);

/// Three lines: name and sizes, tokens by mode, legal pairs.
[[nodiscard]] std::string layout_summary(const NamedLayout& named);

}  // namespace marble::cli

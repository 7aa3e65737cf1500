// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "output.hpp"

#include "marble/error.hpp"
#include "marble/mask.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <ios>
#include <iterator>
#include <system_error>

namespace marble::cli {
namespace {

using TokensByMode = std::array<std::int64_t, kNumModes>;

TokensByMode count_by_mode(const Layout& layout) {
  TokensByMode tokens{};
  for (const Span& span : layout.spans) tokens[static_cast<std::size_t>(span.mode)] += span.length;
  return tokens;
}

}  // namespace

void print_json(const Json& document) {
  fmt::print("{}\n", document.dump(2));
}

std::vector<std::byte> read_bytes(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  require(stream.good() && std::filesystem::is_regular_file(file), "cannot read '{}'", file.string());
  const std::vector<char> text{std::istreambuf_iterator<char>(stream), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_bytes(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  std::filesystem::path partial = file;
  partial += ".partial";
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  std::error_code error;
  if (stream.good()) std::filesystem::rename(partial, file, error);
  if (!stream.good() || error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw InvalidArgument(fmt::format("cannot write '{}'", file.string()));
  }
}

TraceFile::TraceFile(std::filesystem::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  const std::filesystem::path folder = file_.has_parent_path() ? file_.parent_path() : ".";
  require(std::filesystem::is_directory(folder) && !std::filesystem::is_directory(file_), "cannot write '{}'",
          file_.string());
}

TraceSink TraceFile::sink() {
  if (file_.empty()) return {};
  return [this](std::string_view events) {
    if (!events_.empty()) events_ += ",\n";
    events_ += events;
  };
}

void TraceFile::write() const {
  if (events_.empty()) return;
  const std::string document = trace_document(events_);
  write_bytes(file_, std::as_bytes(std::span(document)));
}

std::string grouped(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

Json layout_json(const Layout& layout) {
  Json by_mode = Json::object();
  const TokensByMode tokens = count_by_mode(layout);
  for (int mode = 0; mode < kNumModes; ++mode) {
    by_mode[std::string(to_string(static_cast<Mode>(mode)))] = tokens[static_cast<std::size_t>(mode)];
  }
  return {{"tokens", layout.num_tokens()},
          {"samples", layout.num_samples()},
          {"spans", layout.spans.size()},
          {"legal_pairs", count_legal_pairs(layout)},
          {"tokens_by_mode", by_mode}};
}

std::string layout_summary(const NamedLayout& named) {
  const std::int64_t tokens = named.layout.num_tokens();
  const std::int64_t pairs = count_legal_pairs(named.layout);
  std::string by_mode;
  const TokensByMode counts = count_by_mode(named.layout);
  for (int mode = 0; mode < kNumModes; ++mode) {
    const std::int64_t count = counts[static_cast<std::size_t>(mode)];
    if (count == 0) continue;
    by_mode += fmt::format("{}{} {}", by_mode.empty() ? "" : ", ", to_string(static_cast<Mode>(mode)), grouped(count));
  }
  const double all = static_cast<double>(tokens) * static_cast<double>(tokens);
  return fmt::format(
      "{}: {} tokens, {} samples, {} spans\ntokens by mode: {}\nlegal pairs: {} ({:.2f} % of tokens^2)\n", named.name,
      grouped(tokens), grouped(named.layout.num_samples()),
      grouped(static_cast<std::int64_t>(named.layout.spans.size())), by_mode.empty() ? "none" : by_mode, grouped(pairs),
      tokens == 0 ? 0.0 : 100.0 * static_cast<double>(pairs) / all);
}

}  // namespace marble::cli

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"
#include "marble/layout.hpp"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <system_error>

namespace marble {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kVersionKey = "marble_layout";
constexpr std::string_view kSamplesKey = "samples";

/// Parses and refuses what a DOM hides: a key given twice.
json parse_strictly(std::string_view text) {
  std::set<std::string> keys;
  const auto check_key = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(keys.insert(key).second, "layout: key '{}' is given twice", key);
    }
    return true;
  };
  try {
    return json::parse(text, check_key);
  } catch (const json::exception& error) {
    throw InvalidArgument(fmt::format("layout: not valid JSON: {}", error.what()));
  }
}

/// A value as an error message shows it: never a whole document.
std::string shown(const json& value) {
  constexpr std::size_t kLimit = 40;
  if (value.is_structured()) return fmt::format("({})", value.type_name());
  const std::string text = value.dump();
  return text.size() <= kLimit ? text : text.substr(0, kLimit) + "...";
}

std::int64_t parse_count(const json& value, std::string_view what, std::int64_t max) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(max))
    return value.get<std::int64_t>();
  throw InvalidArgument(fmt::format("{} {} is not an integer in [0, {}]", what, shown(value), max));
}

Span parse_span(const json& value) {
  require(value.is_array() && (value.size() == 2 || value.size() == 3),
          "is not an array [mode, length] or [mode, length, id]");
  if (!value[0].is_string()) throw InvalidArgument(fmt::format("mode {} is not a string", shown(value[0])));
  Span span{parse_mode(value[0].get_ref<const std::string&>()), parse_count(value[1], "length", kMaxTokens)};
  if (value.size() == 3) span.id = static_cast<std::int32_t>(parse_count(value[2], "id", kMaxId));
  return span;
}

std::vector<Span> parse_sample(const json& value, std::size_t sample) {
  require(value.is_array(), "sample {} is not an array of spans", sample);
  std::vector<Span> spans;
  spans.reserve(value.size());
  try {
    for (const json& span : value) spans.push_back(parse_span(span));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("sample {} span {}: {}", sample, spans.size(), error.what()));
  }
  return spans;
}

/// The file that a write must replace: links are followed, so that the link survives.
fs::path write_target(const fs::path& file) {
  std::error_code error;
  const fs::path target = fs::is_symlink(file, error) ? fs::weakly_canonical(file, error) : file;
  const auto type = fs::status(target, error).type();
  require(type == fs::file_type::regular || type == fs::file_type::not_found,
          "cannot write layout {}: it exists and is not a regular file", file.string());
  return target;
}

struct CloseFile {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

/// Opens a new file beside `target` and sets `name` to its path; throws when that cannot be done.
File open_beside(const fs::path& target, fs::path& name) {
  constexpr int kAttempts = 1000;  // each loses to another writer or to what a killed one left behind
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    name = target;
    name += fmt::format(".tmp{}", attempt);
    if (File file{std::fopen(name.c_str(), "wbx")}) return file;
    if (errno != EEXIST) break;
  }
  throw InvalidArgument(fmt::format("cannot write layout {}: {}", target.string(), std::strerror(errno)));
}

}  // namespace

Layout layout_from_json(std::string_view text) {
  const json document = parse_strictly(text);
  require(document.is_object(), "layout: the document is not an object");
  for (const auto& [key, value] : document.items())
    require(key == kVersionKey || key == kSamplesKey, "layout: key '{}' is unknown; the keys are {} and {}", key,
            kVersionKey, kSamplesKey);
  require(document.contains(kVersionKey), "layout: key '{}' is missing", kVersionKey);
  require(document.contains(kSamplesKey), "layout: key '{}' is missing", kSamplesKey);
  const json& version = document[kVersionKey];
  require(version.is_number_integer() && version == kVersion, "layout: version {} is not {}", shown(version), kVersion);
  const json& samples = document[kSamplesKey];
  require(samples.is_array(), "layout: '{}' is not an array", kSamplesKey);

  Layout layout;
  layout.sample_begin.reserve(samples.size() + 1);
  for (std::size_t s = 0; s < samples.size(); ++s) layout.add_sample(parse_sample(samples[s], s));
  validate(layout);
  return layout;
}

std::string to_json(const Layout& layout) {
  validate(layout);
  fmt::memory_buffer text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{{\"{}\": {}, \"{}\": [", kVersionKey, kVersion, kSamplesKey);
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    fmt::format_to(out, "{}\n  [", s == 0 ? "" : ",");
    const char* separator = "";
    for (const Span& span : layout.sample(s)) {
      fmt::format_to(out, "{}[\"{}\", {}", separator, to_string(span.mode), span.length);
      if (span.id != Span::kNoId) fmt::format_to(out, ", {}", span.id);
      fmt::format_to(out, "]");
      separator = ", ";
    }
    fmt::format_to(out, "]");
  }
  fmt::format_to(out, "\n]}}\n");
  return fmt::to_string(text);
}

Layout read_layout(const fs::path& file) {
  std::error_code error;
  require(!fs::is_directory(file, error), "cannot read layout {}: it is a directory", file.string());
  std::ifstream stream(file, std::ios::binary);
  require(stream.is_open(), "cannot read layout {}: {}", file.string(), std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  require(!stream.bad(), "cannot read layout {}: {}", file.string(), std::strerror(errno));
  try {
    return layout_from_json(text);
  } catch (const InvalidArgument& invalid) {
    throw InvalidArgument(fmt::format("{}: {}", file.string(), invalid.what()));
  }
}

void write_layout(const Layout& layout, const fs::path& file) {
  const std::string text = to_json(layout);
  const fs::path target = write_target(file);
  fs::path temporary;
  File stream = open_beside(target, temporary);
  bool written = std::fwrite(text.data(), 1, text.size(), stream.get()) == text.size();
  written = std::fclose(stream.release()) == 0 && written;
  std::error_code error(written ? 0 : errno, std::generic_category());
  if (written) fs::rename(temporary, target, error);
  if (!error) return;
  std::error_code ignored;  // the first error is the one to report
  fs::remove(temporary, ignored);
  throw InvalidArgument(fmt::format("cannot write layout {}: {}", file.string(), error.message()));
}

}  // namespace marble

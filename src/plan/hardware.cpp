// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/hardware.hpp"

#include "marble/error.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <fstream>
#include <iterator>
#include <set>

namespace marble {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kVersionKey = "marble_hardware";

struct Constant {
  std::string_view name;
  std::int64_t Hardware::*member;
  std::int64_t min, max;
};

// From a laptop's single core to ten times the fastest GPU and link announced: wide enough for any machine, narrow
// enough to catch a wrong unit.
constexpr std::int64_t kMaxGflops = 50'000'000, kMaxMbytes = 20'000'000, kMaxNs = 1'000'000'000;
constexpr std::array kConstants = {
    Constant{"forward_full_gflops", &Hardware::forward_full_gflops, 1, kMaxGflops},
    Constant{"forward_partial_gflops", &Hardware::forward_partial_gflops, 1, kMaxGflops},
    Constant{"backward_full_gflops", &Hardware::backward_full_gflops, 1, kMaxGflops},
    Constant{"backward_partial_gflops", &Hardware::backward_partial_gflops, 1, kMaxGflops},
    Constant{"node_mbytes_per_s", &Hardware::node_mbytes_per_s, 1, kMaxMbytes},
    Constant{"network_mbytes_per_s", &Hardware::network_mbytes_per_s, 1, kMaxMbytes},
    Constant{"memory_mbytes_per_s", &Hardware::memory_mbytes_per_s, 1, kMaxMbytes},
    Constant{"step_ns", &Hardware::step_ns, 0, kMaxNs},
    Constant{"exchange_ns", &Hardware::exchange_ns, 0, kMaxNs},
    Constant{"range_ns", &Hardware::range_ns, 0, kMaxNs},
    Constant{"memory_bytes", &Hardware::memory_bytes, 1'000'000, 100'000'000'000'000},
    Constant{"multiprocessors", &Hardware::multiprocessors, 1, 100'000},
};

Hardware h100() {
  Hardware hardware;
  hardware.name = "h100";
  hardware.forward_full_gflops = 560'000;
  hardware.forward_partial_gflops = 475'000;
  hardware.backward_full_gflops = 460'000;
  hardware.backward_partial_gflops = 395'000;
  hardware.node_mbytes_per_s = 360'000;
  hardware.network_mbytes_per_s = 45'000;
  hardware.memory_mbytes_per_s = 2'860'000;
  hardware.step_ns = 30'000;
  hardware.exchange_ns = 60'000;
  hardware.range_ns = 2'000;
  hardware.memory_bytes = 80'000'000'000;
  return hardware;
}

/// Parses and refuses what a DOM hides: a key given twice.
Json parse_strictly(std::string_view text) {
  std::set<std::string> keys;
  const auto check_key = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(keys.insert(key).second, "hardware: key '{}' is given twice", key);
    }
    return true;
  };
  try {
    return Json::parse(text, check_key);
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format("hardware: not valid JSON: {}", error.what()));
  }
}

const Constant* find_constant(std::string_view name) {
  for (const Constant& constant : kConstants)
    if (constant.name == name) return &constant;
  return nullptr;
}

std::int64_t parse_constant(const Json& value, const Constant& constant) {
  if (!value.is_number_integer())
    throw InvalidArgument(fmt::format("hardware: {} {} is not an integer in [{}, {}]", constant.name,
                                      value.is_structured() ? value.type_name() : value.dump(), constant.min,
                                      constant.max));
  return value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX ? INT64_MAX : value.get<std::int64_t>();
}

}  // namespace

Hardware hardware_named(std::string_view name) {
  if (name == "h200") return {};
  if (name == "h100") return h100();
  throw InvalidArgument(fmt::format("hardware '{}' is not one of h100, h200", name));
}

void validate(const Hardware& hardware) {
  for (const Constant& constant : kConstants) {
    const std::int64_t value = hardware.*constant.member;
    require(value >= constant.min && value <= constant.max, "hardware: {} {} is not in [{}, {}]", constant.name, value,
            constant.min, constant.max);
  }
}

Hardware hardware_from_json(std::string_view text) {
  const Json document = parse_strictly(text);
  require(document.is_object(), "hardware: the document is not an object");
  for (const auto& [key, value] : document.items())
    require(key == kVersionKey || key == "name" || key == "source" || find_constant(key) != nullptr,
            "hardware: key '{}' is unknown; see docs/hardware.md", key);
  const auto member = [&](std::string_view key) -> const Json& {
    const auto found = document.find(key);
    require(found != document.end(), "hardware: {} is missing", key);
    return *found;
  };
  require(member(kVersionKey) == kVersion, "hardware: version {} is not {}", member(kVersionKey).dump(), kVersion);
  require(member("name").is_string(), "hardware: name {} is not a string", member("name").dump());
  Hardware hardware;
  hardware.name = member("name").get<std::string>();
  for (const Constant& constant : kConstants)
    hardware.*constant.member = parse_constant(member(constant.name), constant);
  validate(hardware);
  return hardware;
}

std::string to_json(const Hardware& hardware) {
  Json document = {{kVersionKey, kVersion}, {"name", hardware.name}};
  for (const Constant& constant : kConstants) document[std::string(constant.name)] = hardware.*constant.member;
  return document.dump(2) + "\n";
}

Hardware read_hardware(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  require(stream.good() && std::filesystem::is_regular_file(file), "cannot read hardware file '{}'", file.string());
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  try {
    return hardware_from_json(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "layout/generators/parameters.hpp"

#include "marble/error.hpp"

#include <algorithm>
#include <charconv>

namespace marble {
namespace {

const GeneratorParameter* find(const GeneratorInfo& info, std::string_view name) {
  const auto found = std::ranges::find(info.parameters, name, &GeneratorParameter::name);
  return found == info.parameters.end() ? nullptr : &*found;
}

std::vector<std::string_view> names(const GeneratorInfo& info) {
  std::vector<std::string_view> names;
  for (const GeneratorParameter& parameter : info.parameters) names.push_back(parameter.name);
  return names;
}

}  // namespace

std::string comma_separated(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

ParameterReader::ParameterReader(const GeneratorInfo& info, const GeneratorParameters& given)
    : info_(info), given_(given) {
  for (const auto& [name, value] : given)
    require(find(info, name) != nullptr, "{} has no parameter '{}'; it has: {}", info.name, name,
            info.parameters.empty() ? "none" : comma_separated(names(info)));
}

std::string_view ParameterReader::text(std::string_view name) const {
  const auto value = given_.find(name);
  if (value != given_.end()) return value->second;
  const GeneratorParameter* parameter = find(info_, name);
  ensure(parameter != nullptr, "{} reads parameter '{}' that it does not declare", info_.name, name);
  return parameter->default_value;
}

std::int64_t ParameterReader::integer(std::string_view name, std::int64_t low, std::int64_t high) const {
  const std::string_view value = text(name);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  require(error == std::errc{} && end == value.data() + value.size() && number >= low && number <= high,
          "{}: {} '{}' is not an integer in [{}, {}]", info_.name, name, value, low, high);
  return number;
}

std::string_view ParameterReader::one_of(std::string_view name, std::initializer_list<std::string_view> choices) const {
  const std::string_view value = text(name);
  require(std::ranges::find(choices, value) != choices.end(), "{}: {} '{}' is not one of {}", info_.name, name, value,
          comma_separated({choices.begin(), choices.end()}));
  return value;
}

}  // namespace marble

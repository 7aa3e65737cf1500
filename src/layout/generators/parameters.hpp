// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a generator's parameters: what the caller gave, else the documented default. Every refusal names the generator,
// the parameter, the value and what would be accepted.

#include "marble/generators.hpp"

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace marble {

/// "a, b, c", as refusals list what they would accept.
[[nodiscard]] std::string comma_separated(std::span<const std::string_view> words);

class ParameterReader {
 public:
  /// Throws InvalidArgument on a name that `info` does not list.
  ParameterReader(const GeneratorInfo& info, const GeneratorParameters& given);

  [[nodiscard]] std::string_view text(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t low, std::int64_t high) const;
  [[nodiscard]] std::string_view one_of(std::string_view name, std::initializer_list<std::string_view> choices) const;
  [[nodiscard]] bool on_off(std::string_view name) const { return one_of(name, {"on", "off"}) == "on"; }

 private:
  const GeneratorInfo& info_;
  const GeneratorParameters& given_;
};

}  // namespace marble

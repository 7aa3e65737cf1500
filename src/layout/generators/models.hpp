// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The list of generators, by model. To add one: describe it in a GeneratorInfo, write a function from its parameters to
// a Recipe, and list both in its model's file.

#include "layout/generators/parameters.hpp"
#include "layout/generators/recipe.hpp"

#include <vector>

namespace marble {

struct Generator {
  GeneratorInfo info;
  std::function<Recipe(const ParameterReader&)> make_recipe;
};

[[nodiscard]] std::vector<Generator> qwen_generators();
[[nodiscard]] std::vector<Generator> molmo2_generators();
[[nodiscard]] std::vector<Generator> gemma3_generators();
[[nodiscard]] std::vector<Generator> bagel_generators();

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/generators.hpp"

#include "layout/generators/models.hpp"

#include "marble/error.hpp"

namespace marble {
namespace {

struct Registry {
  std::vector<GeneratorInfo> infos;
  std::vector<std::function<Recipe(const ParameterReader&)>> make_recipes;
};

const Registry& registry() {
  static const Registry instance = [] {
    Registry made;
    for (const auto& model : {qwen_generators(), molmo2_generators(), gemma3_generators(), bagel_generators()}) {
      for (const Generator& generator : model) {
        made.infos.push_back(generator.info);
        made.make_recipes.push_back(generator.make_recipe);
      }
    }
    return made;
  }();
  return instance;
}

std::size_t find(std::string_view name) {
  const auto& infos = registry().infos;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].name == name) return i;
    names.push_back(infos[i].name);
  }
  throw InvalidArgument(fmt::format("generator '{}' is not one of {}", name, comma_separated(names)));
}

}  // namespace

std::span<const GeneratorInfo> generators() {
  return registry().infos;
}

const GeneratorInfo& generator(std::string_view name) {
  return registry().infos[find(name)];
}

Layout generate(std::string_view name, std::int64_t tokens, std::uint64_t seed, const GeneratorParameters& parameters) {
  const std::size_t index = find(name);
  const ParameterReader reader(registry().infos[index], parameters);
  Layout layout = pack(registry().make_recipes[index](reader), tokens, seed);
  validate(layout);
  return layout;
}

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "command.hpp"
#include "output.hpp"

#include "marble/generators.hpp"
#include "marble/layout.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>

namespace marble::cli {
namespace {

std::string layers_text(const GeneratorInfo& info) {
  std::string text;
  for (const GeneratorLayer& layer : info.layers) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", layer.count);
    if (layer.window != 0) text += fmt::format("@{}", layer.window);
  }
  return text;
}

Json generator_json(const GeneratorInfo& info) {
  Json layers = Json::array();
  for (const GeneratorLayer& layer : info.layers) layers.push_back({{"window", layer.window}, {"count", layer.count}});
  Json modes = Json::array();
  for (const Mode mode : info.modes) modes.push_back(to_string(mode));
  Json parameters = Json::array();
  for (const GeneratorParameter& parameter : info.parameters) {
    parameters.push_back(
        {{"name", parameter.name}, {"description", parameter.description}, {"default", parameter.default_value}});
  }
  return {{"name", info.name},
          {"model", info.model},
          {"description", info.description},
          {"heads", info.heads},
          {"kv_heads", info.kv_heads},
          {"head_dim", info.head_dim},
          {"softmax_scale", info.softmax_scale},
          {"layers", layers},
          {"order_dependent", info.order_dependent},
          {"modes", modes},
          {"parameters", parameters}};
}

void print_generator(const GeneratorInfo& info) {
  std::string modes;
  for (const Mode mode : info.modes) modes += fmt::format("{}{}", modes.empty() ? "" : ", ", to_string(mode));
  fmt::print("{:<18} {}: {}\n", info.name, info.model, info.description);
  fmt::print("{:<18}   --heads {}/{} --dim {} --layers {}; modes: {}{}\n", "", info.heads, info.kv_heads, info.head_dim,
             layers_text(info), modes, info.order_dependent ? "; needs the given token order" : "");
  for (const GeneratorParameter& parameter : info.parameters) {
    fmt::print("{:<18}   --set {}={}  {}\n", "", parameter.name, parameter.default_value, parameter.description);
  }
}

}  // namespace

Run set_up_layouts(CLI::App& app) {
  auto as_json = std::make_shared<bool>(false);
  app.add_flag("--json", *as_json, "Print one JSON document");
  return [as_json] {
    Json list = Json::array();
    for (const GeneratorInfo& info : generators()) {
      if (*as_json) {
        list.push_back(generator_json(info));
      } else {
        print_generator(info);
      }
    }
    if (*as_json) print_json({{"layouts", list}});
    return 0;
  };
}

}  // namespace marble::cli

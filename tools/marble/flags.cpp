// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "flags.hpp"

#include "marble/error.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>

namespace marble::cli {
namespace {

[[noreturn]] void usage_error(const std::string& message) {
  throw CLI::ValidationError(message);
}

template <typename Integer>
Integer parse_integer(std::string_view text, std::string_view flag, std::string_view form) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size()) return value;
  usage_error(fmt::format("{}: '{}' is not a number of the form {}", flag, text, form));
}

std::pair<std::string_view, std::string_view> cut(std::string_view text, char separator) {
  const std::size_t at = text.find(separator);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

/// CLI11 saturates where a number does not fit; this refuses.
template <typename Integer>
std::string fits(const std::string& text) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size()) return {};
  return fmt::format("'{}' is not an integer that fits", text);
}

bool names_a_file(const std::string& source) {
  return source.ends_with(".json") || source.find('/') != std::string::npos || std::filesystem::exists(source);
}

GeneratorParameters parse_parameters(const std::vector<std::string>& settings) {
  GeneratorParameters parameters;
  for (const std::string& setting : settings) {
    const auto [key, value] = cut(setting, '=');
    if (key.empty() || key.size() == setting.size()) usage_error(fmt::format("--set: '{}' is not key=value", setting));
    parameters[std::string(key)] = value;
  }
  return parameters;
}

std::vector<LayerKind> parse_layers(std::string_view text) {
  constexpr std::string_view kForm = "count[@window],…";
  std::vector<LayerKind> layers;
  while (true) {
    const auto [entry, rest] = cut(text, ',');
    const auto [count, window] = cut(entry, '@');
    LayerKind kind;
    kind.count = parse_integer<std::int32_t>(count, "--layers", kForm);
    if (count.size() != entry.size()) kind.rule.window = parse_integer<std::int64_t>(window, "--layers", kForm);
    layers.push_back(kind);
    if (entry.size() == text.size()) return layers;
    text = rest;
  }
}

void parse_heads(std::string_view text, Model& model) {
  const auto [heads, kv_heads] = cut(text, '/');
  model.heads = parse_integer<std::int32_t>(heads, "--heads", "H or H/Hkv");
  model.kv_heads = model.heads;
  if (heads.size() != text.size()) model.kv_heads = parse_integer<std::int32_t>(kv_heads, "--heads", "H or H/Hkv");
}

std::int32_t count_layers(const Model& model) {
  return std::accumulate(model.layers.begin(), model.layers.end(), std::int32_t{0},
                         [](std::int32_t sum, const LayerKind& kind) { return sum + kind.count; });
}

}  // namespace

void LayoutFlags::add_to(CLI::App& app) {
  app.add_option("layout", source, "A generator's name, or a JSON file")->required()->option_text("LAYOUT");
  app.add_option("--tokens", tokens, "Tokens to generate")->check(fits<std::int64_t>);
  app.add_option("--seed", seed, "Seed of the generator (default 0)")->check(fits<std::uint64_t>);
  app.add_option("--set", parameters, "A parameter of the generator, key=value; repeatable")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

NamedLayout resolve(const LayoutFlags& flags) {
  if (names_a_file(flags.source)) {
    if (flags.tokens || flags.seed || !flags.parameters.empty()) {
      usage_error(fmt::format("--tokens, --seed and --set go with a generator, not with the file '{}'", flags.source));
    }
    return {flags.source, read_layout(flags.source), nullptr};
  }
  const GeneratorInfo& info = generator(flags.source);
  if (!flags.tokens) usage_error(fmt::format("generator '{}' needs --tokens", flags.source));
  return {info.name, generate(info.name, *flags.tokens, flags.seed.value_or(0), parse_parameters(flags.parameters)),
          &info};
}

std::vector<CLI::Option*> ModelFlags::add_to(CLI::App& app) {
  CLI::Option* one = app.add_option("--window", window, "Every layer has this window (0: none)");
  one->check(fits<std::int64_t>);
  CLI::Option* list = app.add_option("--layers", layers, "Layer kinds, e.g. 10,52@1024: count[@window],…");
  one->excludes(list);
  list->option_text("LIST");
  return {app.add_option("--heads", heads, "Query heads and key heads")->option_text("H/Hkv"),
          app.add_option("--dim", head_dim, "Head dimension"), one, list,
          app.add_flag("--clamp", clamp, "Windows clamp bidirectional spans too")};
}

Model resolve(const ModelFlags& flags, const GeneratorInfo* generator) {
  Model model = generator != nullptr ? model_of(*generator) : Model{};
  if (!flags.heads.empty()) parse_heads(flags.heads, model);
  if (flags.head_dim) model.head_dim = *flags.head_dim;
  if (!flags.layers.empty()) model.layers = parse_layers(flags.layers);
  if (flags.window) {
    LayerKind kind;
    kind.rule.window = *flags.window;
    kind.count = count_layers(model);
    model.layers = {kind};
  }
  bool any_window = false;
  for (LayerKind& kind : model.layers) {
    kind.rule.clamp = flags.clamp && kind.rule.window != 0;
    any_window = any_window || kind.rule.window != 0;
  }
  require(!flags.clamp || any_window, "--clamp needs a layer with a window; give --window or --layers count@window");
  return model;
}

void CallFlags::add_to(CLI::App& app) {
  app.add_option("--dtype", dtype, "fp32, bf16 or fp16")->capture_default_str();
  app.add_option("--softmax-scale", softmax_scale, "Scale of the scores (default: the model's, else 1/sqrt(dim))");
  app.add_option("--softcap", softcap, "Scores become C tanh(s / C); 0: none");
  app.add_flag("--deterministic", deterministic, "Gradients repeat to the bit; slower on GPUs");
}

AttentionOptions resolve(const CallFlags& flags, const Model& model, const GeneratorInfo* generator) {
  AttentionOptions options;
  options.softcap = flags.softcap;
  options.deterministic = flags.deterministic;
  if (flags.softmax_scale) {
    options.softmax_scale = *flags.softmax_scale;
  } else if (generator != nullptr && generator->head_dim == model.head_dim) {
    options.softmax_scale = generator->softmax_scale;
  } else if (model.head_dim > 0) {
    options.softmax_scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  }
  return options;
}

std::vector<CLI::Option*> PlanFlags::add_to(CLI::App& app) {
  return {app.add_option("--ring", mesh.ring, "Ring ranks R")->capture_default_str(),
          app.add_option("--ulysses", mesh.ulysses, "Ulysses ranks U")->capture_default_str(),
          app.add_option("--ranks-per-node", mesh.ranks_per_node, "Ranks of a node")->capture_default_str(),
          app.add_option("--canonical", canonical, "auto, sequence or stack")->capture_default_str(),
          app.add_option("--placement", placement, "auto, contiguous, zigzag, striped, ptrr, chunks or dealt")
              ->capture_default_str(),
          app.add_option("--strategy", strategy, "auto, ring, alltoall or allgather")->capture_default_str()};
}

PlanOptions resolve(const PlanFlags& flags, int threads) {
  PlanOptions options;
  options.threads = threads;
  if (flags.canonical != "auto") options.canonical = parse_canonical(flags.canonical);
  if (flags.placement != "auto") options.placement = parse_placement(flags.placement);
  if (flags.strategy != "auto") options.strategy = parse_strategy(flags.strategy);
  return options;
}

}  // namespace marble::cli

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Flags that several commands share, and what they resolve to. Text that is no value of its flag is a usage error
// (CLI::ParseError); values that parse but cannot be met are InvalidArgument.

#include "marble/attention.hpp"
#include "marble/generators.hpp"
#include "marble/layout.hpp"
#include "marble/plan.hpp"
#include "marble/tensor.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace marble::cli {

/// LAYOUT: a generator's name with --tokens, --seed and --set, or a JSON file.
struct LayoutFlags {
  std::string source;
  std::optional<std::int64_t> tokens;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> parameters;  // key=value

  void add_to(CLI::App& app);
};

/// `generator` is null for a layout read from a file.
struct NamedLayout {
  std::string name;
  Layout layout;
  const GeneratorInfo* generator = nullptr;
};
[[nodiscard]] NamedLayout resolve(const LayoutFlags& flags);

/// The model: defaults are the generator's, or one head of 64 and one layer without a window for a file.
struct ModelFlags {
  std::string heads;   // "H/Hkv" or "H"
  std::string layers;  // "10,52@1024"
  std::optional<std::int32_t> head_dim;
  std::optional<std::int64_t> window;
  bool clamp = false;

  /// The options added, so that a command can exclude them.
  std::vector<CLI::Option*> add_to(CLI::App& app);
};
[[nodiscard]] Model resolve(const ModelFlags& flags, const GeneratorInfo* generator);

/// How one attention call computes. The generator's softmax scale holds for its own head dim, else 1 / sqrt(dim).
struct CallFlags {
  std::string dtype = "bf16";
  std::optional<double> softmax_scale;
  double softcap = 0.0;
  bool deterministic = false;

  void add_to(CLI::App& app);
};
[[nodiscard]] AttentionOptions resolve(const CallFlags& flags, const Model& model, const GeneratorInfo* generator);

/// The mesh and the planner's options.
struct PlanFlags {
  Mesh mesh;
  std::string canonical = "auto";
  std::string placement = "auto";
  std::string strategy = "auto";

  /// The options added, so that a command can exclude them.
  std::vector<CLI::Option*> add_to(CLI::App& app);
};
[[nodiscard]] PlanOptions resolve(const PlanFlags& flags, int threads);

}  // namespace marble::cli

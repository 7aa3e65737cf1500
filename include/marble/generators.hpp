// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Seeded layouts of five models (docs/workloads.md). The same (name, tokens, seed, parameters) gives the same layout on
// every platform: own integer random numbers, no libm, one random stream per sample index so that sample k does not
// depend on the total. Packs end with at most 2 % of causal fill as a sample of its own, and hold every mode of the
// generator at any size that can hold one of each.

#include "marble/layout.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace marble {

/// One kind of attention layer of a model. window 0 means none.
struct GeneratorLayer {
  std::int64_t window = 0;
  std::int32_t count = 1;
};

struct GeneratorParameter {
  std::string name;
  std::string description;
  std::string default_value;
};

/// What a generator is and the model whose packs it makes; the command line takes its defaults from here.
struct GeneratorInfo {
  std::string name;         // "gemma3-docs"
  std::string model;        // "Gemma 3 27B"
  std::string description;  // one line
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  double softmax_scale = 0.0;  // Gemma 3 27B: 1/sqrt(168) at head_dim 128
  std::vector<GeneratorLayer> layers;
  bool order_dependent = false;  // the model has layers that need the given token order (Qwen3.8)
  std::vector<Mode> modes;       // every pack holds each of them
  std::vector<GeneratorParameter> parameters;
};

[[nodiscard]] std::span<const GeneratorInfo> generators();

/// Throws InvalidArgument naming `name` and listing the generators.
[[nodiscard]] const GeneratorInfo& generator(std::string_view name);

using GeneratorParameters = std::map<std::string, std::string, std::less<>>;

/// Exactly `tokens` tokens. Throws InvalidArgument on an unknown name or parameter, a bad value, or too few tokens to
/// hold one span of each mode (the message says how many are needed).
[[nodiscard]] Layout generate(std::string_view name, std::int64_t tokens, std::uint64_t seed,
                              const GeneratorParameters& parameters = {});

}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
// Prints the table "Usual schemes" of docs/numerics.md: errors of what other systems do to partial results, run through
// the same code, over those of one rank.

#include "exactness/subject.hpp"
#include "support/lossy_backend.hpp"

#include "marble/generators.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace marble::exactness {
namespace {

constexpr std::array<std::int32_t, 4> kRings = {1, 2, 4, 8};

struct Scheme {
  const char* name;
  test::Losses losses;
  std::array<bool, 4> touches;  // out, dQ, dK, dV
};

constexpr std::array<Scheme, 5> kSchemes = {{
    {"MARBLE", {}, {true, true, true, true}},
    {"each step's output in 16 bits, merged in fp32", {.partial_outputs = true}, {true, false, false, false}},
    {"each step's output and each merge in 16 bits",
     {.partial_outputs = true, .merged_outputs = true},
     {true, false, false, false}},
    {"each step's part in 16 bits, summed in fp32", {.key_partials = true}, {false, false, true, true}},
    {"each step's part and each sum in 16 bits",
     {.query_gradient = true, .key_partials = true, .key_sums = true},
     {false, true, true, true}},
}};

constexpr std::array<const char*, 4> kTensors = {"out", "dQ", "dK", "dV"};

/// Errors over one rank's: [tensor][ring].
using Ratios = std::array<std::array<double, kRings.size()>, kTensors.size()>;

Ratios ratios_of(Subject& subject, const Scheme& scheme) {
  Ratios ratios{};
  for (std::size_t r = 0; r < kRings.size(); ++r) {
    const Plan plan = subject.plan({.ring = kRings[r]}, subject.options());
    const VerifyResult result = subject.judge(plan, [&](int threads) {
      return std::make_unique<test::LossyBackend>(make_cpu_backend(threads), scheme.losses);
    });
    ratios[0][r] = result.out.ratio;
    ratios[1][r] = result.dq.ratio;
    ratios[2][r] = result.dk.ratio;
    ratios[3][r] = result.dv.ratio;
  }
  return ratios;
}

void print_table(const std::string& generator_name, std::int64_t tokens) {
  Subject subject({generate(generator_name, tokens, 1), {}, 64, 128}, {8, 4}, DType::bf16);
  std::array<Ratios, kSchemes.size()> ratios{};
  for (std::size_t s = 0; s < kSchemes.size(); ++s) ratios[s] = ratios_of(subject, kSchemes[s]);
  fmt::print("\n`{}`, {} tokens:\n\n| tensor | scheme | R = 1 | 2 | 4 | 8 |\n|---|---|---|---|---|---|\n",
             generator_name, tokens);
  for (std::size_t t = 0; t < kTensors.size(); ++t)
    for (std::size_t s = 0; s < kSchemes.size(); ++s) {
      if (!kSchemes[s].touches[t]) continue;
      fmt::print("| {} | {} |", kTensors[t], kSchemes[s].name);
      for (double ratio : ratios[s][t]) fmt::print(" {:.3f} |", ratio);
      fmt::print("\n");
    }
}

}  // namespace
}  // namespace marble::exactness

int main() {
  for (const char* name : {"bagel-edit", "gemma3-docs", "molmo2-video"}) marble::exactness::print_table(name, 8192);
}

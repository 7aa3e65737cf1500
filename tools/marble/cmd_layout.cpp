// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

#include "command.hpp"
#include "flags.hpp"
#include "output.hpp"

#include "marble/layout.hpp"
#include "marble/mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

namespace marble::cli {
namespace {

struct Flags {
  LayoutFlags layout;
  std::string out;
  bool json = false;
};

/// One line, cut after about 100 characters of spans.
std::string sample_text(const Layout& layout, std::int64_t sample) {
  constexpr std::size_t kWidth = 100;
  const auto spans = layout.sample(sample);
  std::int64_t tokens = 0;
  std::string text;
  bool cut = false;
  for (const Span& span : spans) {
    tokens += span.length;
    cut = cut || text.size() > kWidth;
    if (cut) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(span.mode), span.length);
    if (span.id != Span::kNoId) text += fmt::format(" #{}", span.id);
  }
  return fmt::format("  sample {:<3} {:>9} tokens {:>5} spans: {}{}\n", sample, grouped(tokens), spans.size(), text,
                     cut ? ", …" : "");
}

void print_layout(const NamedLayout& named) {
  constexpr std::int64_t kSamplesShown = 8;
  fmt::print("{}", layout_summary(named));
  const std::int64_t samples = named.layout.num_samples();
  for (std::int64_t sample = 0; sample < std::min(samples, kSamplesShown); ++sample) {
    fmt::print("{}", sample_text(named.layout, sample));
  }
  if (samples > kSamplesShown) fmt::print("… and {} more samples\n", grouped(samples - kSamplesShown));
}

/// Legal pairs of each layer kind of the generator's model.
Json layers_json(const NamedLayout& named) {
  Json layers = Json::array();
  if (named.generator == nullptr) return layers;
  for (const GeneratorLayer& layer : named.generator->layers) {
    MaskRule rule;
    rule.window = layer.window;
    layers.push_back(
        {{"window", layer.window}, {"count", layer.count}, {"legal_pairs", count_legal_pairs(named.layout, rule)}});
  }
  return layers;
}

int run_layout(const Flags& flags) {
  const NamedLayout named = resolve(flags.layout);
  if (!flags.out.empty()) write_layout(named.layout, flags.out);
  if (!flags.json) {
    print_layout(named);
    if (!flags.out.empty()) fmt::print("wrote {}\n", flags.out);
    return 0;
  }
  Json document = {{"name", named.name}};
  document.update(layout_json(named.layout));
  document["layers"] = layers_json(named);
  document["digest"] = fmt::format("{:016x}", digest(named.layout));
  if (!flags.out.empty()) document["out"] = flags.out;
  print_json(document);
  return 0;
}

}  // namespace

Run set_up_layout(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  flags->layout.add_to(app);
  app.add_option("--out", flags->out, "Write the layout as JSON to this file");
  app.add_flag("--json", flags->json, "Print one JSON document");
  return [flags] { return run_layout(*flags); };
}

}  // namespace marble::cli

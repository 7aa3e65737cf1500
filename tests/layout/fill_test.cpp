// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0

// The fill rule of docs/workloads.md, for every generator.

#include "marble/error.hpp"
#include "marble/generators.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace marble {
namespace {

class Fill : public ::testing::TestWithParam<GeneratorInfo> {
 protected:
  /// The fewest tokens that the generator takes, as its refusal says.
  [[nodiscard]] static std::int64_t minimum(const std::string& name) {
    try {
      (void)generate(name, 0, 0);
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      return std::stoll(message.substr(message.rfind(' ')));
    }
    return 0;
  }

  static void expect_well_filled(const GeneratorInfo& info, std::int64_t tokens, std::uint64_t seed) {
    const Layout layout = generate(info.name, tokens, seed);
    EXPECT_EQ(layout.num_tokens(), tokens) << info.name << " seed " << seed;
    for (const Mode mode : info.modes) {
      const bool found =
          std::ranges::any_of(layout.spans, [&](const Span& s) { return s.mode == mode && s.length > 0; });
      EXPECT_TRUE(found) << info.name << " with " << tokens << " tokens, seed " << seed << ", lacks "
                         << to_string(mode);
    }
    for (const Span& span : layout.spans) EXPECT_GT(span.length, 0);
    for (std::int64_t s = 0; s + 1 < layout.num_samples(); ++s) EXPECT_FALSE(layout.sample(s).empty());
    expect_little_fill(info, layout, tokens);
  }

  /// Where text alone can be no sample of the generator, a last sample of text is fill.
  static void expect_little_fill(const GeneratorInfo& info, const Layout& layout, std::int64_t tokens) {
    const std::set<std::string> kinds = {"molmo2-video", "molmo2-images", "gemma3-docs", "gemma3-frames",
                                         "bagel-longvideo"};
    if (!kinds.contains(info.name)) return;
    for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
      const auto sample = layout.sample(s);
      const bool text = std::ranges::all_of(sample, [](const Span& span) { return span.mode == Mode::causal; });
      if (!text) continue;
      EXPECT_EQ(s, layout.num_samples() - 1);
      EXPECT_EQ(sample.size(), 1U);
      EXPECT_LE(sample[0].length, tokens / 50);
    }
  }
};

TEST_P(Fill, EverySizeIsExactAndHoldsEveryMode) {
  for (const std::int64_t tokens : {3000, 3001, 3433, 4096, 4097, 5003, 7919, 10007, 32768, 65537, 99991, 1000003})
    for (std::uint64_t seed = 0; seed < 5; ++seed) expect_well_filled(GetParam(), tokens, seed);
}

TEST_P(Fill, EverySizeFromTheSmallestOnWorks) {
  const std::int64_t smallest = minimum(GetParam().name);
  EXPECT_LE(smallest, 3000);
  EXPECT_THROW((void)generate(GetParam().name, smallest - 1, 0), InvalidArgument);
  EXPECT_THROW((void)generate(GetParam().name, -1, 0), InvalidArgument);
  for (std::int64_t tokens = smallest; tokens < smallest + 400; ++tokens)
    expect_well_filled(GetParam(), tokens, static_cast<std::uint64_t>(tokens));
}

TEST_P(Fill, SamplesDoNotDependOnTheTotal) {
  constexpr std::int64_t kSmall = 4000000;
  const Layout small = generate(GetParam().name, kSmall, 5);
  const Layout large = generate(GetParam().name, 2 * kSmall + 17, 5);
  std::int64_t equal_tokens = 0;
  for (std::int64_t s = 0; s < small.num_samples(); ++s) {
    if (!std::ranges::equal(small.sample(s), large.sample(s))) break;
    for (const Span& span : small.sample(s)) equal_tokens += span.length;
  }
  EXPECT_GT(equal_tokens, kSmall * 7 / 10);  // all but the last sample, which may hold a quarter of the small pack
}

INSTANTIATE_TEST_SUITE_P(Generators, Fill, ::testing::ValuesIn(generators().begin(), generators().end()),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace marble

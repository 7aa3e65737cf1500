// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/generators.hpp"

#include "layout/generators/documents.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace marble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kPack = 8000000;

double share(const Layout& layout, Mode mode) {
  std::int64_t tokens = 0;
  for (const Span& span : layout.spans) tokens += span.mode == mode ? span.length : 0;
  return static_cast<double>(tokens) / static_cast<double>(layout.num_tokens());
}

double tokens_per_sample(const Layout& layout) {
  return static_cast<double>(layout.num_tokens()) / static_cast<double>(layout.num_samples());
}

TEST(Generators, AreTheTwelveDocumentedOnes) {
  std::vector<std::string> names;
  for (const GeneratorInfo& info : generators()) names.push_back(info.name);
  EXPECT_THAT(names, ElementsAre("qwen3vl-docs", "qwen3vl-video", "qwen38-docs", "qwen38-video", "molmo2-video",
                                 "molmo2-images", "molmo2-sft", "gemma3-docs", "gemma3-frames", "bagel-mix",
                                 "bagel-longvideo", "bagel-edit"));
}

TEST(Generators, DescribeTheirModels) {
  const GeneratorInfo& gemma = generator("gemma3-docs");
  EXPECT_EQ(gemma.heads, 32);
  EXPECT_EQ(gemma.kv_heads, 16);
  EXPECT_DOUBLE_EQ(gemma.softmax_scale, 1.0 / std::sqrt(168.0));
  ASSERT_EQ(gemma.layers.size(), 2U);
  EXPECT_EQ(gemma.layers[1].window, 1024);
  EXPECT_EQ(gemma.layers[1].count, 52);
  EXPECT_TRUE(generator("qwen38-video").order_dependent);
  EXPECT_EQ(generator("qwen38-video").head_dim, 256);
  EXPECT_FALSE(generator("qwen3vl-video").order_dependent);
  for (const GeneratorInfo& info : generators()) {
    EXPECT_EQ(info.heads % info.kv_heads, 0) << info.name;
    EXPECT_FALSE(info.modes.empty() || info.layers.empty() || info.description.empty()) << info.name;
  }
}

TEST(Generators, SameSeedSameLayoutOnEveryPlatform) {
  struct Case {
    std::string_view name;
    std::uint64_t digest0, digest1;
  };
  constexpr Case kCases[] = {
      {"qwen3vl-docs", 0xa5aed444f05a58ee, 0xc5d351b6dc4b064f},
      {"qwen3vl-video", 0x902c0f7c163d0e2d, 0x1767396a28e8273c},
      {"qwen38-docs", 0xa5aed444f05a58ee, 0xc5d351b6dc4b064f},
      {"qwen38-video", 0x902c0f7c163d0e2d, 0x1767396a28e8273c},
      {"molmo2-video", 0x931b823f6e917f3e, 0xce35e05ba324a213},
      {"molmo2-images", 0x6b77251858be5d6e, 0x268667b12e84043},
      {"molmo2-sft", 0x469226356d67008, 0x6624f23f6af0ae51},
      {"gemma3-docs", 0x339cd7e9358d4ed2, 0x5fdfe8af0094cc49},
      {"gemma3-frames", 0x1a9e650e5d05a4c2, 0x9143e98959c49e9a},
      {"bagel-mix", 0xf88cf2ad84c14471, 0xc8b964d0038338e1},
      {"bagel-longvideo", 0x51604e406bbc20d, 0xb94cb2d49cf309d0},
      {"bagel-edit", 0xb57888f0aa642a69, 0x7f2602b8a4744ec3},
  };
  EXPECT_EQ(std::size(kCases), generators().size());
  for (const Case& c : kCases) {
    EXPECT_EQ(digest(generate(c.name, 200000, 0)), c.digest0) << c.name;
    EXPECT_EQ(digest(generate(c.name, 200000, 1)), c.digest1) << c.name;
  }
}

TEST(Generators, UnknownNamesAndParametersAreRefused) {
  const auto refuses = [](std::string_view name, const GeneratorParameters& parameters, const std::string& words) {
    EXPECT_THAT([&] { (void)generate(name, 10000, 0, parameters); }, ThrowsMessage<InvalidArgument>(HasSubstr(words)));
  };
  refuses("bagel", {}, "generator 'bagel' is not one of qwen3vl-docs, ");
  refuses("gemma3-docs", {{"crop", "on"}}, "gemma3-docs has no parameter 'crop'; it has: crops");
  refuses("gemma3-docs", {{"crops", "yes"}}, "gemma3-docs: crops 'yes' is not one of on, off");
  refuses("gemma3-frames", {{"frames", "0"}}, "gemma3-frames: frames '0' is not an integer in [1, ");
  refuses("gemma3-frames", {{"frames", "12x"}}, "frames '12x' is not an integer");
  refuses("gemma3-frames", {{"frames", ""}}, "frames '' is not an integer");
  refuses("gemma3-frames", {{"frames", "99999999999999999999"}}, "is not an integer");
  refuses("bagel-mix", {{"preset", "rl"}}, "preset 'rl' is not one of pt, ct, sft");
  refuses("bagel-longvideo", {{"length", "100"}}, "length '100' is not an integer in [1908, ");
}

TEST(Generators, EveryDefaultMayBeGivenExplicitly) {
  for (const GeneratorInfo& info : generators()) {
    GeneratorParameters parameters;
    for (const GeneratorParameter& parameter : info.parameters) {
      EXPECT_FALSE(parameter.description.empty());
      parameters[parameter.name] = parameter.default_value;
    }
    EXPECT_EQ(generate(info.name, 100000, 2, parameters), generate(info.name, 100000, 2)) << info.name;
  }
}

TEST(Documents, MatchThePublishedStatistics) {
  constexpr std::uint64_t kDocuments = 100000;
  std::int64_t images = 0;
  std::vector<std::int64_t> texts;
  for (std::uint64_t i = 0; i < kDocuments; ++i) {
    Random random(11, i);
    const Document document = draw_document(random, 1000);
    images += static_cast<std::int64_t>(document.images.size());
    std::int64_t tokens = 0;
    for (const std::int64_t text : document.texts) tokens += text;
    texts.push_back(tokens);
  }
  EXPECT_NEAR(static_cast<double>(images) / kDocuments, 2.50, 0.1);
  std::ranges::nth_element(texts, texts.begin() + kDocuments / 2);
  EXPECT_NEAR(static_cast<double>(texts[kDocuments / 2]), 677, 677 * 0.03);
}

TEST(Documents, LeavingImagesOutKeepsTheText) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    Random random(3, i);
    Random again = random;
    const Document whole = draw_document(random, 1000);
    const Document part = draw_document(again, 1);
    EXPECT_EQ(part.images.size(), 1U);
    EXPECT_EQ(part.texts.size(), 2U);
    EXPECT_EQ(part.images[0], whole.images[0]);
    EXPECT_EQ(std::accumulate(part.texts.begin(), part.texts.end(), std::int64_t{0}),
              std::accumulate(whole.texts.begin(), whole.texts.end(), std::int64_t{0}));
  }
}

TEST(Generators, GemmaDocumentsHoldTheTextOfWebDocuments) {
  const Layout layout = generate("gemma3-docs", kPack, 0);
  EXPECT_NEAR(tokens_per_sample(layout), 2160, 2160 * 0.08);
  EXPECT_NEAR(share(layout, Mode::full), 0.61, 0.04);
  const Layout plain = generate("gemma3-docs", kPack, 0, {{"crops", "off"}});
  EXPECT_LT(tokens_per_sample(plain), 0.75 * tokens_per_sample(layout));
}

TEST(Generators, Molmo2ExamplesHaveThePublishedSize) {
  EXPECT_NEAR(tokens_per_sample(generate("molmo2-sft", kPack, 0)), 4100, 4100 * 0.08);
  EXPECT_NEAR(tokens_per_sample(generate("molmo2-sft", kPack, 0, {{"frames", "384"}})), 4592, 4592 * 0.08);
}

TEST(Generators, BagelMixHasThePublishedShares) {
  const Layout ct = generate("bagel-mix", kPack, 0);
  EXPECT_NEAR(tokens_per_sample(ct), 7700, 7700 * 0.08);
  EXPECT_NEAR(share(ct, Mode::noise), 0.44, 0.03);
  EXPECT_NEAR(share(ct, Mode::full), 0.515, 0.03);
  EXPECT_NEAR(share(ct, Mode::causal), 0.046, 0.01);
  const Layout pt = generate("bagel-mix", kPack, 0, {{"preset", "pt"}});
  EXPECT_NEAR(share(pt, Mode::noise), 0.32, 0.03);
  EXPECT_NEAR(share(pt, Mode::full), 0.59, 0.03);
  EXPECT_NEAR(share(pt, Mode::causal), 0.09, 0.015);
}

TEST(Generators, BagelSamplesStayUnderTheLoadersLimit) {
  const Layout layout = generate("bagel-mix", 1000000, 0, {{"max_sample", "12000"}});
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    std::int64_t tokens = 0;
    for (const Span& span : layout.sample(s)) tokens += span.length;
    EXPECT_LE(tokens, 12000);
  }
  EXPECT_THROW((void)generate("bagel-mix", 1000000, 0, {{"max_sample", "100"}}), InvalidArgument);
}

TEST(Generators, BagelLongVideosHaveTheGivenLength) {
  const Layout layout = generate("bagel-longvideo", kPack, 0, {{"length", "131072"}});
  for (std::int64_t s = 0; s < 61; ++s) EXPECT_EQ(layout.sample(s).size(), 1U + 3 * 111 - 1);
  EXPECT_LT(layout.sample(61).size(), 100U);  // what is left of 8M after 61 samples of 130,746
  for (const std::string frame : {"578", "1026", "2306"}) {
    for (const std::string vit : {"on", "off"}) {
      const Layout pack = generate("bagel-longvideo", 500000, 0, {{"frame", frame}, {"vit", vit}});
      EXPECT_EQ(pack.num_tokens(), 500000);
      EXPECT_EQ(std::to_string(pack.sample(0)[2].length), frame);
    }
  }
}

TEST(Generators, BagelForcingReplacesNoiseByFullSplits) {
  const GeneratorParameters grouped = {{"frames_per_split", "4"}};
  const GeneratorParameters forced = {{"frames_per_split", "4"}, {"forcing", "on"}};
  for (const std::string name : {"bagel-longvideo", "bagel-mix"}) {
    const Layout forced_pack = generate(name, 1000000, 0, forced);
    EXPECT_LT(share(forced_pack, Mode::noise), share(generate(name, 1000000, 0, grouped), Mode::noise));
    EXPECT_GT(share(forced_pack, Mode::noise), 0);
  }
}

TEST(Generators, QwenVideosFollowTheirBudget) {
  const Layout released = generate("qwen3vl-video", kPack, 0);
  const Layout report = generate("qwen3vl-video", kPack, 0, {{"budget", "229376"}, {"frames", "2048"}});
  const Layout whole = generate("qwen3vl-video", kPack, 0, {{"rule", "whole-video"}});
  EXPECT_LT(tokens_per_sample(whole), tokens_per_sample(released));
  EXPECT_LT(tokens_per_sample(released), tokens_per_sample(report));
  for (const Span& span : whole.spans) EXPECT_LT(span.length, 40000);
  EXPECT_EQ(generate("qwen38-video", kPack, 0), released);
}

}  // namespace
}  // namespace marble

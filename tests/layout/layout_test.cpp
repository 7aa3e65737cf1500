// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/layout.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace marble {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

auto refuses(const std::string& words) {
  return ThrowsMessage<InvalidArgument>(HasSubstr(words));
}

Layout layout_of(const std::vector<Span>& sample) {
  Layout layout;
  layout.add_sample(sample);
  return layout;
}

TEST(Mode, NamesRoundTrip) {
  for (const Mode mode : {Mode::causal, Mode::full, Mode::noise, Mode::group, Mode::branch})
    EXPECT_EQ(parse_mode(to_string(mode)), mode);
  EXPECT_THAT([] { (void)parse_mode("window"); }, refuses("mode 'window' is not one of causal, full"));
}

TEST(Layout, EmptyLayoutsSamplesAndSpansAreLegal) {
  Layout layout;
  EXPECT_NO_THROW(validate(layout));
  EXPECT_EQ(layout.num_tokens(), 0);
  layout.add_sample({});
  layout.add_sample(std::vector<Span>{{Mode::noise, 0, 3}, {Mode::full, 0}});
  EXPECT_NO_THROW(validate(layout));
  EXPECT_EQ(layout.num_samples(), 2);
  EXPECT_TRUE(layout.sample(0).empty());
  EXPECT_EQ(layout.sample(1).size(), 2U);
}

TEST(Layout, ValidateNamesSampleAndSpan) {
  EXPECT_THAT(
      [] {
        validate(layout_of({{Mode::full, 3}, {Mode::causal, -1}}));
      },
      refuses("sample 0 span 1: length -1 is negative"));
  EXPECT_THAT([] { validate(layout_of({{Mode::causal, 3, 0}})); }, refuses("mode causal takes no id"));
  EXPECT_THAT([] { validate(layout_of({{Mode::branch, 3, 7}})); }, refuses("mode branch takes no id"));
  EXPECT_THAT([] { validate(layout_of({{Mode::noise, 3, -2}})); }, refuses("id -2 is below -1"));
  EXPECT_THAT([] { validate(layout_of({{Mode::noise, (std::int64_t{1} << 40) + 1}})); }, refuses("above 2^40"));
  EXPECT_THAT(
      [] {
        validate(layout_of({{Mode::noise, std::int64_t{1} << 40}, {Mode::full, 1}}));
      },
      refuses("sample 0 span 1: the layout grows beyond 2^40"));
  EXPECT_THAT([] { validate(layout_of({{static_cast<Mode>(9), 1}})); }, refuses("mode 9 is out of range"));
}

TEST(Layout, ValidateChecksBoundaries) {
  Layout layout = layout_of({{Mode::causal, 1}, {Mode::causal, 2}});
  layout.sample_begin = {0, 1};
  EXPECT_THAT([&] { validate(layout); }, refuses("ends at span 1 but the layout has 2 spans"));
  layout.sample_begin = {0, 3, 2};
  EXPECT_THAT([&] { validate(layout); }, refuses("sample 1 ends at span 2 but begins at span 3"));
  layout.sample_begin = {1, 2};
  EXPECT_THAT([&] { validate(layout); }, refuses("must start with 0"));
  layout.sample_begin = {};
  EXPECT_THAT([&] { validate(layout); }, refuses("must start with 0"));
}

TEST(Layout, CuSeqlensBecomeCausalSamples) {
  const Layout layout = layout_from_cu_seqlens(std::vector<std::int64_t>{0, 5, 5, 12});
  const std::vector<std::vector<Span>> expected = {{{Mode::causal, 5}}, {{Mode::causal, 0}}, {{Mode::causal, 7}}};
  EXPECT_EQ(layout, layout_from_samples(expected));
  EXPECT_EQ(layout_from_cu_seqlens(std::vector<std::int64_t>{0}).num_samples(), 0);
  const auto from = [](std::vector<std::int64_t> cu) { return [cu] { (void)layout_from_cu_seqlens(cu); }; };
  EXPECT_THAT(from({}), refuses("cu_seqlens is empty"));
  EXPECT_THAT(from({1, 2}), refuses("starts with 1"));
  EXPECT_THAT(from({0, 4, 3}), refuses("cu_seqlens[2] = 3 is below cu_seqlens[1] = 4"));
}

TEST(Layout, DigestTellsLayoutsApart) {
  const Layout layout = layout_of({{Mode::causal, 5}, {Mode::noise, 7}});
  EXPECT_EQ(digest(layout), digest(layout_of({{Mode::causal, 5}, {Mode::noise, 7}})));
  EXPECT_EQ(digest(Layout{}), 0x392209f14dea4c24U);
  EXPECT_EQ(digest(layout), 0x1c52dd8c985edb95U);
  EXPECT_NE(digest(layout), digest(layout_of({{Mode::causal, 5}, {Mode::noise, 7, 0}})));
  EXPECT_NE(digest(layout), digest(layout_of({{Mode::causal, 5}, {Mode::full, 7}})));
  Layout split = layout_of({{Mode::causal, 5}});
  split.add_sample(std::vector<Span>{{Mode::noise, 7}});
  EXPECT_NE(digest(layout), digest(split));
}

}  // namespace
}  // namespace marble

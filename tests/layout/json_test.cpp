// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/error.hpp"
#include "marble/generators.hpp"
#include "marble/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace marble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void expect_refused(const std::string& text, const std::string& words) {
  EXPECT_THAT([&] { (void)layout_from_json(text); }, ThrowsMessage<InvalidArgument>(HasSubstr(words))) << text;
}

std::string with_samples(const std::string& samples) {
  return R"({"marble_layout": 1, "samples": )" + samples + "}";
}

class JsonFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("marble_json_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::ptrdiff_t num_files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator{});
  }

  fs::path folder_;
};

TEST(Json, ReadsTheDocumentedForm) {
  const Layout layout = layout_from_json(with_samples(R"([[["causal", 210], ["noise", 64, 3]], [], [["branch", 0]]])"));
  const std::vector<std::vector<Span>> expected = {
      {{Mode::causal, 210}, {Mode::noise, 64, 3}}, {}, {{Mode::branch, 0}}};
  EXPECT_EQ(layout, layout_from_samples(expected));
}

TEST(Json, WritesOneSampleALine) {
  const std::vector<std::vector<Span>> samples = {{{Mode::causal, 210}, {Mode::noise, 64, 3}}, {}};
  EXPECT_EQ(to_json(layout_from_samples(samples)),
            "{\"marble_layout\": 1, \"samples\": [\n  [[\"causal\", 210], [\"noise\", 64, 3]],\n  []\n]}\n");
}

TEST(Json, RoundTripIsExact) {
  EXPECT_EQ(layout_from_json(to_json(Layout{})), Layout{});
  for (const GeneratorInfo& info : generators()) {
    const Layout layout = generate(info.name, 30000, 1);
    EXPECT_EQ(layout_from_json(to_json(layout)), layout) << info.name;
  }
}

TEST(Json, DocumentErrorsAreNamed) {
  expect_refused("", "not valid JSON");
  expect_refused("[", "not valid JSON");
  expect_refused("[]", "not an object");
  expect_refused(with_samples("[]") + "x", "not valid JSON");
  expect_refused(with_samples("3"), "'samples' is not an array");
  expect_refused(R"({"samples": []})", "'marble_layout' is missing");
  expect_refused(R"({"marble_layout": 1})", "'samples' is missing");
  expect_refused(R"({"marble_layout": 2, "samples": []})", "version 2 is not 1");
  expect_refused(R"({"marble_layout": "1", "samples": []})", "version \"1\" is not 1");
  expect_refused(R"({"marble_layout": 1.0, "samples": []})", "version 1.0 is not 1");
  expect_refused(R"({"marble_layout": 1, "samples": [], "note": 0})", "key 'note' is unknown");
  expect_refused(R"({"marble_layout": 1, "samples": [], "samples": []})", "key 'samples' is given twice");
}

TEST(Json, SpanErrorsNameSampleAndSpan) {
  const std::string where = "sample 1 span 2: ";
  const auto refused_span = [&](const std::string& span, const std::string& words) {
    expect_refused(with_samples(R"([[], [["full", 1], ["full", 2], )" + span + "]]"), where + words);
  };
  expect_refused(with_samples(R"([[], {}])"), "sample 1 is not an array of spans");
  refused_span("3", "is not an array [mode, length]");
  refused_span(R"(["full"])", "is not an array [mode, length]");
  refused_span(R"(["noise", 1, 2, 3])", "is not an array [mode, length]");
  refused_span(R"([1, 2])", "mode 1 is not a string");
  refused_span(R"(["window", 2])", "mode 'window' is not one of");
  refused_span(R"(["full", "2"])", "length \"2\" is not an integer in");
  refused_span(R"(["full", 2.0])", "length 2.0 is not an integer in");
  refused_span(R"(["full", -2])", "length -2 is not an integer in");
  refused_span(R"(["full", true])", "length true is not an integer in");
  refused_span(R"(["full", [2]])", "length (array) is not an integer in");
  refused_span(R"(["full", 1099511627777])", "length 1099511627777 is not an integer in [0, 1099511627776]");
  refused_span(R"(["full", 18446744073709551616])", "length 1.8446744073709552e+19 is not an integer in");
  refused_span(R"(["full", 1099511627776])", "the layout grows beyond 2^40 tokens");
  refused_span(R"(["full", 2, 3])", "mode full takes no id");
  refused_span(R"(["noise", 2, -1])", "id -1 is not an integer in");
  refused_span(R"(["noise", 2, 2147483648])", "id 2147483648 is not an integer in");
  refused_span(R"(["noise", 2, null])", "id null is not an integer in");
}

TEST_F(JsonFile, WriteThenReadIsExact) {
  const Layout layout = generate("bagel-mix", 20000, 0);
  write_layout(layout, folder_ / "layout.json");
  EXPECT_EQ(read_layout(folder_ / "layout.json"), layout);
  write_layout(Layout{}, folder_ / "layout.json");
  EXPECT_EQ(read_layout(folder_ / "layout.json"), Layout{});
  EXPECT_EQ(num_files(), 1);
}

TEST_F(JsonFile, ErrorsNameTheFile) {
  const fs::path file = folder_ / "layout.json";
  EXPECT_THAT([&] { (void)read_layout(file); }, ThrowsMessage<InvalidArgument>(HasSubstr("layout.json: No such file")));
  EXPECT_THAT([&] { (void)read_layout(folder_); }, ThrowsMessage<InvalidArgument>(HasSubstr("is a directory")));
  std::ofstream(file) << "{";
  EXPECT_THAT([&] { (void)read_layout(file); }, ThrowsMessage<InvalidArgument>(HasSubstr("layout.json: layout: not")));
}

TEST_F(JsonFile, AFailedWriteLeavesNothingBehind) {
  EXPECT_THROW(write_layout(Layout{}, folder_ / "none" / "layout.json"), InvalidArgument);
  EXPECT_THROW(write_layout(Layout{}, folder_), InvalidArgument);
  Layout invalid;
  invalid.add_sample(std::vector<Span>{{Mode::causal, -1}});
  write_layout(Layout{}, folder_ / "layout.json");
  EXPECT_THROW(write_layout(invalid, folder_ / "layout.json"), InvalidArgument);
  EXPECT_EQ(read_layout(folder_ / "layout.json"), Layout{});
  EXPECT_EQ(num_files(), 1);
}

TEST_F(JsonFile, LinksAndLeftoversSurvive) {
  std::ofstream(folder_ / "target.json.tmp0") << "of another writer";
  write_layout(Layout{}, folder_ / "target.json");
  fs::create_symlink("target.json", folder_ / "link.json");
  const Layout layout = layout_from_cu_seqlens(std::vector<std::int64_t>{0, 4});
  write_layout(layout, folder_ / "link.json");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.json"));
  EXPECT_EQ(read_layout(folder_ / "target.json"), layout);
  EXPECT_EQ(num_files(), 3);
}

}  // namespace
}  // namespace marble

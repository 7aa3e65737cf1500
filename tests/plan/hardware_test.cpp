// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/hardware.hpp"

#include "marble/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace marble {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(hardware_from_json(text));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

/// The default's JSON with `from` replaced by `to`.
std::string altered(const std::string& from, const std::string& to) {
  std::string text = to_json(Hardware{});
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(HardwareTest, RoundTripKeepsEveryConstant) {
  Hardware hardware = hardware_named("h100");
  hardware.name = "a \"quoted\" name";
  hardware.range_ns = 17;
  EXPECT_EQ(hardware_from_json(to_json(hardware)), hardware);
}

TEST(HardwareTest, ShippedFilesAreWhatIsCompiledIn) {
  for (const char* name : {"h100", "h200"})
    EXPECT_EQ(read_hardware(std::string(MARBLE_SOURCE_DIR "/data/hardware/") + name + ".json"), hardware_named(name));
  EXPECT_EQ(hardware_named("h200"), Hardware{});
}

TEST(HardwareTest, RefusesNamingTheValueAndTheRange) {
  EXPECT_THAT(refusal(altered("\"step_ns\": 25000,", "")), HasSubstr("step_ns is missing"));
  EXPECT_THAT(refusal(altered("\"step_ns\": 25000", "\"step_ns\": -1")),
              HasSubstr("step_ns -1 is not in [0, 1000000000]"));
  EXPECT_THAT(refusal(altered("\"forward_full_gflops\": 640000", "\"forward_full_gflops\": 0")),
              HasSubstr("forward_full_gflops 0 is not in [1, 50000000]"));
  EXPECT_THAT(refusal(altered("\"forward_full_gflops\": 640000", "\"forward_full_gflops\": 18446744073709551615")),
              HasSubstr("forward_full_gflops"));
  EXPECT_THAT(refusal(altered("\"node_mbytes_per_s\": 389000", "\"node_mbytes_per_s\": 389.5")),
              HasSubstr("node_mbytes_per_s 389.5 is not an integer in [1, 20000000]"));
  EXPECT_THAT(refusal(altered("\"memory_bytes\": 141000000000", "\"memory_bytes\": \"141 GB\"")),
              HasSubstr("memory_bytes \"141 GB\" is not an integer"));
  EXPECT_THAT(refusal(altered("\"marble_hardware\": 1", "\"marble_hardware\": 2")), HasSubstr("version 2 is not 1"));
  EXPECT_THAT(refusal(altered("\"step_ns\"", "\"step_us\"")), HasSubstr("key 'step_us' is unknown"));
  EXPECT_THAT(refusal(altered("\"step_ns\"", "\"range_ns\": 1, \"step_ns\"")),
              HasSubstr("key 'range_ns' is given twice"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not an object"));
  EXPECT_THAT(refusal("{"), HasSubstr("not valid JSON"));
  EXPECT_THROW(static_cast<void>(hardware_named("h300")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(read_hardware("no/such/file.json")), InvalidArgument);
}

}  // namespace
}  // namespace marble

// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The packs of the exactness suite: every mode alone and mixed, windows, odd lengths, one-token and empty samples. Most
// hold about 680 tokens in three or more samples: with blocks of 16, five or more blocks a rank at up to 8 ranks.

#include "marble/layout.hpp"
#include "marble/mask.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace marble::exactness {

struct LayoutCase {
  std::string name;
  std::vector<std::vector<Span>> samples;
  MaskRule rule = {};
  std::int32_t head_dim = 16;
  std::int32_t block = 16;
};

inline const std::vector<LayoutCase>& layout_cases() {
  using enum Mode;
  static const std::vector<std::vector<Span>> kDocuments = {
      {{causal, 211}}, {{causal, 89}}, {{causal, 263}}, {{causal, 121}}};
  static const std::vector<std::vector<Span>> kImages = {
      {{causal, 40}, {full, 97}, {causal, 31}, {full, 60}}, {{causal, 150}}, {{full, 121}, {causal, 55}, {full, 129}}};
  static const std::vector<std::vector<Span>> kEdits = {
      {{causal, 37}, {full, 50}, {causal, 20}, {noise, 70}, {full, 70}, {causal, 11}, {noise, 33}},
      {{causal, 64}, {noise, 95}, {full, 95}},
      {{noise, 48}, {causal, 90}}};
  static const std::vector<std::vector<Span>> kVideo = {
      {{causal, 9},
       {group, 61},
       {causal, 5},
       {group, 61},
       {causal, 5},
       {group, 62},
       {causal, 44},
       {branch, 30},
       {branch, 41}},
      {{group, 49}, {causal, 80}},
      {{causal, 77}, {group, 33}, {causal, 13}, {group, 90}, {causal, 20}}};
  static const std::vector<std::vector<Span>> kEverything = {
      {{causal, 51}, {full, 64}, {noise, 47}, {causal, 10}, {branch, 25}, {branch, 18}, {causal, 7}},
      {{group, 40}, {causal, 30}, {full, 21}, {group, 55}, {branch, 60}},
      {},
      {{causal, 1}},
      {{noise, 33, 0}, {causal, 44}, {noise, 29, 0}, {noise, 31, 1}, {full, 67}, {causal, 49}}};
  static const std::vector<LayoutCase> kCases = {
      {"causal", kDocuments},
      {"full", {{{full, 233}}, {{full, 149}, {full, 90}}, {{full, 211}}}},
      {"noise", {{{noise, 180}, {noise, 77}}, {{noise, 205}}, {{noise, 64}, {noise, 63}, {noise, 97}}}},
      {"group", {{{group, 100}, {group, 131}}, {{group, 219}}, {{group, 80, 0}, {group, 75, 1}, {group, 81, 0}}}},
      {"branch", {{{branch, 101}, {branch, 96}, {branch, 40}}, {{branch, 230}}, {{branch, 66}, {branch, 150}}}},
      {"images", kImages, {}, 24},
      {"edits", kEdits, {}, 8},
      {"video", kVideo},
      {"everything", kEverything, {}, 40},
      {"documents under a window", kDocuments, {.window = 50}},
      {"images under a window", kImages, {.window = 33}},
      {"images clamped to a window", kImages, {.window = 33, .clamp = true}},
      {"edits under a window", kEdits, {.window = 45}},
      {"video clamped to a window", kVideo, {.window = 50, .clamp = true}},
      {"everything under a window", kEverything, {.window = 29}},
      {"window of one token", kEdits, {.window = 1, .clamp = true}},
      {"noise and group spans of one sample",
       {{{causal, 30}, {noise, 61}, {group, 70}, {causal, 20}, {noise, 37}, {group, 41}},
        {{group, 55}, {noise, 80}, {causal, 66}},
        {{causal, 220}}}},
      {"samples of one token and of none",
       {{},
        {{causal, 1}},
        {{full, 1}},
        {{noise, 1}},
        {},
        {{group, 1}},
        {{branch, 1}},
        {{causal, 640}},
        {{causal, 0}},
        {{causal, 1}, {noise, 1}, {full, 1}, {group, 1}}}},
      {"blocks of 128",
       {{{causal, 511}, {full, 130}}, {{causal, 300}, {noise, 101}, {full, 101}}, {{causal, 157}}},
       {},
       64,
       128},
      {"blocks of 32", kEdits, {}, 80, 32},
      {"fewer blocks than ranks", {{{causal, 9}, {full, 8}}, {{causal, 4}}, {{noise, 11}}}},
      {"one token", {{{causal, 1}}}},
  };
  return kCases;
}

}  // namespace marble::exactness

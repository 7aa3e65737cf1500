// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A layout is a packed sequence: samples laid end to end, each a list of spans (mode, length[, id]). It is all the
// planner ever reads; per-token tracks (paper section 01) are derived from it. Values are immutable in practice:
// build one, `validate` it, pass it by const reference. Lengths are tokens.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace marble {

/// How a span attends to itself and who may read it later (paper section 01; branch: Molmo2's annotation branches).
///   causal  left to right; read by later spans of its sample
///   full    bidirectional; read by later spans
///   noise   bidirectional within its set; read by nobody else
///   group   bidirectional over all group spans of its set; read by later spans
///   branch  left to right; read by nobody else
enum class Mode : std::uint8_t { causal, full, noise, group, branch };
inline constexpr int kNumModes = 5;

[[nodiscard]] std::string_view to_string(Mode mode);
/// Throws InvalidArgument naming `name` and the accepted modes.
[[nodiscard]] Mode parse_mode(std::string_view name);

/// `id` joins the noise spans, or the group spans, of one sample that carry the same id into one set. Without an id
/// (kNoId) each noise span is a set of its own and all group spans of the sample form one set. Other modes carry no id.
struct Span {
  static constexpr std::int32_t kNoId = -1;
  Mode mode = Mode::causal;
  std::int64_t length = 0;
  std::int32_t id = kNoId;

  friend bool operator==(const Span&, const Span&) = default;
};

/// The most tokens that a layout may have.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

/// Samples in pack order; sample s is spans[sample_begin[s] .. sample_begin[s + 1]). Empty samples and spans are legal.
struct Layout {
  std::vector<Span> spans;
  std::vector<std::int64_t> sample_begin = {0};

  [[nodiscard]] std::int64_t num_samples() const { return static_cast<std::int64_t>(sample_begin.size()) - 1; }
  [[nodiscard]] std::span<const Span> sample(std::int64_t s) const;
  [[nodiscard]] std::int64_t num_tokens() const;
  void add_sample(std::span<const Span> sample);

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Throws InvalidArgument on a negative length, an id on a mode that takes none or below kNoId, a total beyond
/// 2^40 tokens, 2^31 or more samples or spans, or sample boundaries that do not cover the spans.
void validate(const Layout& layout);

[[nodiscard]] Layout layout_from_samples(std::span<const std::vector<Span>> samples);

/// One causal sample per [cu_seqlens[i], cu_seqlens[i + 1]), as flash-attn's varlen calls take them.
[[nodiscard]] Layout layout_from_cu_seqlens(std::span<const std::int64_t> cu_seqlens);

/// The four integers per token of paper section 01; all arrays have num_tokens() entries. `sample` ascends; `segment`
/// is shared by the tokens of one bidirectional set, -1 outside; `noise` is >= 0 for tokens that only their own noise
/// or branch set reads (noise >= 0 does not imply segment >= 0: branches); `position` is the index in the pack.
struct Tracks {
  std::vector<std::int32_t> sample;
  std::vector<std::int32_t> segment;
  std::vector<std::int32_t> noise;
  std::vector<std::int64_t> position;
};

[[nodiscard]] Tracks to_tracks(const Layout& layout);

/// Run-length encodes tracks into a normalized layout. Throws InvalidArgument, naming the token, when tracks contradict
/// each other (position not 0..N-1, a sample that returns after another) or say what spans cannot (a segment or noise
/// id in two samples, a segment that is noise in part, a noise id with two segments, a branch in several pieces).
[[nodiscard]] Layout layout_from_tracks(std::span<const std::int32_t> sample, std::span<const std::int32_t> segment,
                                        std::span<const std::int32_t> noise, std::span<const std::int64_t> position);

/// The one layout among those of equal tracks that layout_from_tracks returns: no empty samples or spans; neighbours of
/// one set joined; a group of a single span is full; ids only where a set has several spans (for groups: where a sample
/// has several such sets), counted from 0 within the sample in order of appearance.
[[nodiscard]] Layout normalize(const Layout& layout);

/// JSON, documented in docs/layouts.md: {"marble_layout": 1, "samples": [[["causal", 210], ["noise", 64, 3]], ...]}.
/// Reading validates; errors name the sample and span. Writing replaces the file only when complete.
[[nodiscard]] Layout layout_from_json(std::string_view text);
[[nodiscard]] std::string to_json(const Layout& layout);
[[nodiscard]] Layout read_layout(const std::filesystem::path& file);
void write_layout(const Layout& layout, const std::filesystem::path& file);

/// 64-bit FNV-1a over the spans and sample boundaries: equal layouts have equal digests on every platform.
[[nodiscard]] std::uint64_t digest(const Layout& layout);

}  // namespace marble

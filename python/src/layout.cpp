// SPDX-FileCopyrightText: 2026 The MARBLE authors
// SPDX-License-Identifier: Apache-2.0
#include "marble/layout.hpp"

#include "arrays.hpp"
#include "bindings.hpp"

#include "marble/mask.hpp"

#include <nanobind/operators.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;

namespace marble::python {
namespace {

using SpanTuple = std::tuple<std::string, std::int64_t, std::int32_t>;

Layout from_samples(const std::vector<std::vector<SpanTuple>>& samples) {
  Layout layout;
  std::vector<Span> spans;
  for (const std::vector<SpanTuple>& sample : samples) {
    spans.clear();
    for (const auto& [mode, length, id] : sample) spans.push_back({parse_mode(mode), length, id});
    layout.add_sample(spans);
  }
  validate(layout);
  return layout;
}

std::vector<std::vector<SpanTuple>> to_samples(const Layout& layout) {
  std::vector<std::vector<SpanTuple>> samples;
  for (std::int64_t s = 0; s < layout.num_samples(); ++s) {
    std::vector<SpanTuple>& sample = samples.emplace_back();
    for (const Span& span : layout.sample(s)) sample.emplace_back(to_string(span.mode), span.length, span.id);
  }
  return samples;
}

auto tracks_of(const Layout& layout) {
  Tracks tracks = to_tracks(layout);
  return std::tuple(to_array<std::int32_t>(std::move(tracks.sample)), to_array<std::int32_t>(std::move(tracks.segment)),
                    to_array<std::int32_t>(std::move(tracks.noise)),
                    to_array<std::int64_t>(std::move(tracks.position)));
}

Layout from_tracks(const ArrayIn<std::int32_t>& sample, const ArrayIn<std::int32_t>& segment,
                   const ArrayIn<std::int32_t>& noise, const ArrayIn<std::int64_t>& position) {
  return layout_from_tracks(to_span(sample), to_span(segment), to_span(noise), to_span(position));
}

}  // namespace

void bind_layout(nb::module_& module) {
  nb::class_<Layout>(module, "Layout")
      .def_static("from_samples", &from_samples, nb::arg("samples"))
      .def_static(
          "from_cu_seqlens", [](const ArrayIn<std::int64_t>& array) { return layout_from_cu_seqlens(to_span(array)); },
          nb::arg("cu_seqlens"))
      .def_static("from_tracks", &from_tracks, nb::arg("sample"), nb::arg("segment"), nb::arg("noise"),
                  nb::arg("position"))
      .def_static(
          "from_json", [](const std::string& text) { return layout_from_json(text); }, nb::arg("text"))
      .def("to_json", [](const Layout& layout) { return to_json(layout); })
      .def("samples", &to_samples)
      .def("tracks", &tracks_of)
      .def("normalized", [](const Layout& layout) { return normalize(layout); })
      .def_prop_ro("num_tokens", &Layout::num_tokens)
      .def_prop_ro("num_samples", &Layout::num_samples)
      .def_prop_ro("digest", [](const Layout& layout) { return digest(layout); })
      .def(
          "legal_pairs",
          [](const Layout& layout, std::int64_t window, bool clamp) {
            return count_legal_pairs(layout, {.window = window, .clamp = clamp});
          },
          nb::arg("window"), nb::arg("clamp"))
      .def(
          "equals", [](const Layout& layout, const Layout& other) { return layout == other; }, nb::arg("other"));
}

}  // namespace marble::python

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, and that every source opens with its licence.

    base <- layout <- mask <- plan <- exec;  exec sees backend and transport, which do not see each other
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Public header -> the layer that implements it.
HEADER_LAYER = {
    "error.hpp": "base", "tensor.hpp": "base",
    "layout.hpp": "layout", "generators.hpp": "layout",
    "mask.hpp": "mask",
    "rank_plan.hpp": "rank_plan", "plan.hpp": "plan", "hardware.hpp": "plan", "cost.hpp": "plan",
    "backend.hpp": "backend", "cuda.hpp": "backend", "transport.hpp": "transport",
    "attention.hpp": "exec", "verify.hpp": "verify", "trace.hpp": "trace", "bench.hpp": "bench",
}

# Layer -> layers that it may include, besides itself.
MAY_SEE = {
    "base": set(),
    "layout": {"base"},
    "mask": {"base", "layout", "rank_plan"},  # VisibleRule, which a rank plan carries
    "rank_plan": {"base", "mask"},
    "plan": {"base", "layout", "mask", "rank_plan"},
    "backend": {"base", "mask", "rank_plan"},
    "transport": {"base"},
    "exec": {"base", "layout", "mask", "rank_plan", "plan", "backend", "transport"},
    "trace": {"rank_plan", "backend", "transport", "exec"},
    "verify": {"base", "layout", "mask", "rank_plan", "plan", "backend", "transport", "exec", "trace"},
    "bench": {"base", "layout", "mask", "rank_plan", "plan", "backend", "transport", "exec", "trace", "verify"},
}

# Folders that see the public headers only, and what the build writes.
OUTSIDE = ("tools", "examples", "bench", "python")
GENERATED = {"marble_commit.hpp"}

# But for these: what measures the form of plans takes them apart.
MAY_ALSO_SEE = {"bench/gpu_plan_forms.cpp": {"plan/rank_plan_parts.hpp"}}

# Public headers meet none of these.
PRIVATE_DEPENDENCIES = re.compile(r"#include <(mpi|cuda|nccl|Eigen|nlohmann|CLI|torch)")

LICENCE = "// SPDX-FileCopyrightText: 2026 The MARBLE authors\n// SPDX-License-Identifier: Apache-2.0\n"
QUOTED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def sources(folder):
    paths = (ROOT / folder).rglob("*")
    return sorted(path for path in paths if path.suffix in (".hpp", ".cpp", ".cuh", ".cu"))


def layer_of(include):
    """The layer that a quoted include belongs to; None for a neighbour in the same folder."""
    first, _, rest = include.partition("/")
    if first == "marble":
        return HEADER_LAYER.get(rest, f"unlisted public header {rest}")
    return first if first in MAY_SEE else None


def layered_errors(path, layer, text):
    for include in QUOTED.findall(text):
        seen = layer_of(include)
        if seen is not None and seen != layer and seen not in MAY_SEE[layer]:
            yield f"{layer} may not include {include} ({seen})"


def outside_errors(path, text):
    allowed = GENERATED | MAY_ALSO_SEE.get(path.relative_to(ROOT).as_posix(), set())
    for include in QUOTED.findall(text):
        if include not in allowed and not include.startswith("marble/") and not (path.parent / include).exists():
            yield f"may include public headers only, not {include}"


def errors():
    for path in sources("include"):
        text = path.read_text()
        layer = HEADER_LAYER.get(path.name)
        found = ["is not listed in HEADER_LAYER"] if layer is None else list(layered_errors(path, layer, text))
        found += [f"is public but includes {match[0]}" for match in PRIVATE_DEPENDENCIES.finditer(text)]
        yield from ((path, error) for error in found)
    for path in sources("src"):
        layer = path.relative_to(ROOT / "src").parts[0]
        yield from ((path, error) for error in layered_errors(path, layer, path.read_text()))
    for folder in OUTSIDE:
        for path in sources(folder):
            yield from ((path, error) for error in outside_errors(path, path.read_text()))
    for folder in ("include", "src", "tests", *OUTSIDE):
        for path in sources(folder):
            if not path.read_text().startswith(LICENCE):
                yield path, "does not open with the licence"


def main():
    found = list(errors())
    for path, error in found:
        print(f"{path.relative_to(ROOT)}: {error}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

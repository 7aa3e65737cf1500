#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the GPU tables of README.md, docs/kernels.md and docs/across-gpus.md from bench/results; with --check, fails
when one is out of step.

    bench/gpu_table.py [--check]
"""

import argparse
import json
import pathlib
import sys

import across_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NAMES = {"cudnn": "cuDNN", "flash": "flash", "flash-4": "FlashAttention-4", "flex": "FlexAttention"}
NOT_MEASURED = "-"
README_CASES = [
    ("dense 16k", 128),
    ("causal 16k", 128),
    ("dense 16k", 64),
    ("dense 16k", 256),
    ("documents 4k, full spans", 128),
    ("documents 16k, noise spans", 128),
    ("window 1024, full spans", 128),
]


def read(name):
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


class Figures:
    """Rows by case, head dimension, direction and system; those of peers that were not timed are left out."""

    def __init__(self, rows):
        rows = [r for r in rows if "status" not in r]
        self.rows = {(r["case"], r["head_dim"], r["direction"], r["system"]): r for r in rows}
        self.cases = list(dict.fromkeys((r["case"], r["head_dim"]) for r in rows))

    def get(self, case, direction, system):
        return self.rows.get((*case, direction, system))

    def label(self, case):
        row = self.get(case, "forward", "marble")
        size = "" if row["tokens"] // 1024 in [int(w[:-1]) for w in case[0].split() if w[:-1].isdigit()] else "64k, "
        return f"{size}{case[0]}, d {case[1]}, {row['heads']}/{row['kv_heads']} heads"

    def peers(self, case, direction):
        """Peers of a row, best first."""
        rows = [r for (*key, d, s), r in self.rows.items() if tuple(key) == case and d == direction and s in NAMES]
        return sorted(rows, key=lambda r: -r["tflops"])

    def cell(self, case, direction, every_peer=False):
        """MARBLE's speed and its ratio to the best peer, and to FlashAttention-4 where it was measured."""
        row = self.get(case, direction, "marble")
        if row is None:
            return NOT_MEASURED
        found = self.peers(case, direction)
        shown = [peer for peer in found if every_peer or peer is found[0] or peer["system"] == "flash-4"]
        return f"{row['tflops']:.0f}" + "".join(
            f", {row['tflops'] / peer['tflops']:.2f} of {NAMES[peer['system']]}" for peer in shown
        )

    def deterministic(self, case):
        row = self.get(case, "backward", "marble deterministic")
        return f"{row['ms'] / self.get(case, 'backward', 'marble')['ms']:.2f}" if row else NOT_MEASURED

    def tile_cell(self, case, direction):
        """With every peer, and the rate in tile area."""
        row = self.get(case, direction, "marble")
        if row is None:
            return NOT_MEASURED
        first, *others = self.cell(case, direction, every_peer=True).split(", ")
        return ", ".join([f"{first} ({row['tile_tflops']:.0f})", *others])


def machine(rows):
    versions = sorted({f"{NAMES[r['system']]} {r['version']}" for r in rows if "version" in r})
    return ", ".join([*sorted({f"{r['machine']}, cuDNN {r['cudnn']}" for r in rows}), *versions])


def refused(figures, rows):
    """A line for each peer that failed or was wrong."""
    lines = []
    for row in rows:
        if "status" in row:
            case = figures.label((row["case"], row["head_dim"]))
            lines.append(f"{NAMES[row['system']]} was not timed on {case}: {row['status']}, {row['reason']}.")
    return lines


def readme_table(rows):
    figures = Figures(rows)
    lines = ["| case | forward | backward | both |", "|---|---|---|---|"]
    for case in README_CASES:
        cells = (figures.cell(case, direction) for direction in ("forward", "backward", "forward+backward"))
        lines.append(f"| {figures.label(case)} | " + " | ".join(cells) + " |")
    return lines


def kernels_table(rows):
    figures = Figures(rows)
    lines = [
        f"`bench/gpu.sh`, {machine(rows)}; {NOT_MEASURED}: not measured.",
        "",
        "| case | forward (in tile area) | backward (in tile area) | both | deterministic backward, times | commit |",
        "|---|---|---|---|---|---|",
    ]
    for case in figures.cases:
        cells = [figures.tile_cell(case, direction) for direction in ("forward", "backward")]
        cells += [figures.cell(case, "forward+backward"), figures.deterministic(case)]
        cells.append(figures.get(case, "forward", "marble")["commit"])
        lines.append(f"| {figures.label(case)} | " + " | ".join(cells) + " |")
    notes = refused(figures, rows)
    return lines + (["", *notes] if notes else [])


def plain_table(rows):
    """The kernels for any GPU from sm_80 on, beside FlashAttention-2's."""
    figures = Figures(rows)
    lines = ["| case | forward | backward | both | commit |", "|---|---|---|---|---|"]
    for case in figures.cases:
        plain = {d: figures.get(case, d, "marble plain") for d in ("forward", "backward", "forward+backward")}
        if not all(plain.values()):
            continue
        cells = (
            f"{row['tflops']:.0f}, {row['tflops'] / figures.get(case, direction, 'flash')['tflops']:.2f} of flash"
            for direction, row in plain.items()
        )
        lines.append(f"| {figures.label(case)} | " + " | ".join(cells) + f" | {plain['forward']['commit']} |")
    return lines


def errors_table(rows):
    """Ratios of errors: the largest over cases and head dimensions."""
    lines = ["| against | heads | out | dQ | dK | dV |", "|---|---|---|---|---|---|"]
    for against, sharing in dict.fromkeys((r["against"], r["sharing"]) for r in rows):
        worst = (
            max(r["ratio"] for r in rows if (r["against"], r["sharing"], r["tensor"]) == (against, sharing, tensor))
            for tensor in ("out", "dq", "dk", "dv")
        )
        name = NAMES.get(against, f"8 ring steps over {against}")
        lines.append(f"| {name} | {sharing} | " + " | ".join(f"{ratio:.3f}" for ratio in worst) + " |")
    return lines


def forms_table(rows):
    """What the form of a plan costs."""
    lines = ["| forward, d 128, 32/4 heads | mask | times | ms | commit |", "|---|---|---|---|---|"]
    for row in rows:
        times = f"{row['ms']:.2f} and {row['base_ms']:.2f}"
        lines.append(f"| {row['comparison']} | {row['layout']} | {row['ratio']:.3f} | {times} | {row['commit']} |")
    return lines


def replaced(text, block, lines):
    begin, end = f"<!-- {block}: made by bench/gpu_table.py -->\n", f"<!-- {block}: end -->"
    if begin not in text or end not in text:
        sys.exit(f"the marks of {block} are missing")
    head, rest = text.split(begin)
    return head + begin + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    speed, errors = read("gpu_attention.jsonl"), read("gpu_errors.jsonl")
    stale = []
    tables = across_table.blocks()
    tables["README.md"]["gpu speed"] = readme_table(speed)
    tables["docs/kernels.md"] = {
        "gpu speed": kernels_table(speed),
        "gpu plain": plain_table(speed),
        "gpu errors": errors_table(errors),
        "gpu forms": forms_table(read("gpu_plan_forms.jsonl")),
    }
    for name, blocks in tables.items():
        path = ROOT / name
        text = new = path.read_text()
        for block, lines in blocks.items():
            new = replaced(new, block, lines)
        if new != text:
            stale.append(name)
            if not arguments.check:
                path.write_text(new)
    if stale and arguments.check:
        sys.exit(f"out of step with bench/results: {', '.join(stale)}; run bench/gpu_table.py")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/balance.md: how evenly each placement spreads work, and how many keys it moves.

    scripts/balance_table.py build/tools/marble/marble [--quick]
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GENERATORS = ["qwen3vl-docs", "qwen3vl-video", "qwen38-docs", "qwen38-video", "molmo2-images", "molmo2-sft",
              "molmo2-video", "gemma3-docs", "gemma3-frames", "bagel-edit", "bagel-longvideo", "bagel-mix"]
RINGS = [4, 8, 16, 32]
# Placement and the strategy that the paper, or this library, runs over it.
COLUMNS = [("contiguous", "alltoall"), ("ptrr", "ring"), ("chunks", "ring"), ("dealt", "alltoall")]

HEADER = """# Balance

How evenly each placement spreads a layer's work over R ring ranks, and how many keys move. Made by
`scripts/balance_table.py`; seed 0, the model's heads, one layer without a window (`gemma3` also with its window of 1,024), blocks of 128.

A cell is `a / b, c`: **a** busiest rank over mean; **b** the same step by step (the sum of each step's busiest rank over
the sum of step means: a layer takes between a and b, since ranks wait for those they fetch from alone); both in tile cost; **c** remote keys that a
rank receives, in shards (a ring moves R - 1). Steps are those of the strategy named in the head; an all-to-all has one
step for its own keys and fetches of at most one shard each (cut by distance or rank by rank). *Avoided*: the share of the ring's remote keys that the
all-to-all does not move, over contiguous and over dealt shards (the paper: 55-100 % over contiguous ones).

Two cells are short of what `dealt` should reach: molmo2-video at 1M tokens over 32 ranks (at most 0.7 shards; its videos are
as long as a shard, and each one split is read by every rank that holds a part), and bagel-longvideo there (within 0.05 of
PTRR; six samples over 32 ranks).
"""


def marble(program, *arguments):
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def cell(plan, tokens):
    balance, exchange = plan["balance"], plan["exchange"]
    return (f"{balance['busiest_over_mean']:.3f} / {balance['step_busiest_over_mean']:.3f}, "
            f"{exchange['kv_tokens'] / tokens:.3f}")


def avoided(plan):
    exchange = plan["exchange"]
    return f"{100 * (1 - exchange['kv_tokens'] / exchange['ring_kv_tokens']):.1f} %"


def row(program, layout, info, tokens, ring, window):
    heads = ["--heads", f"{info['heads']}/{info['kv_heads']}", "--dim", str(info["head_dim"])]
    plans = [marble(program, "plan", layout, *heads, "--ring", str(ring), "--placement", placement, "--strategy",
                    strategy, "--window", str(window)) for placement, strategy in COLUMNS]
    name = info["name"]
    label = name + (f" (window {window})" if window else "")
    cells = [cell(plan, tokens) for plan in plans]
    return f"| {label} | {ring} | " + " | ".join(cells) + f" | {avoided(plans[0])} | {avoided(plans[3])} |"


def table(program, folder, tokens, generators, rings):
    lines = [f"\n## {tokens // 2**20}M tokens\n",
             "| layout | R | " + " | ".join(f"{p}, {s}" for p, s in COLUMNS) + " | avoided, contiguous | dealt |",
             "|---|---|" + "---|" * (len(COLUMNS) + 2)]
    models = {info["name"]: info for info in marble(program, "layouts")["layouts"]}
    for name in generators:
        # From a file, so that no model's layers forbid a placement.
        layout = str(folder / f"{name}.json")
        marble(program, "layout", name, "--tokens", str(tokens), "--out", layout)
        for window in [0, 1024] if name.startswith("gemma3") else [0]:
            for ring in rings:
                lines.append(row(program, layout, models[name], tokens, ring, window))
                print(lines[-1], flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("marble", help="the command line's program")
    parser.add_argument("--quick", action="store_true", help="two generators at 1M tokens, to standard output only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            table(options.marble, pathlib.Path(folder), 2**20, GENERATORS[:2], [4])
            return
        lines = [HEADER]
        for tokens in (4 * 2**20, 2**20):
            lines += table(options.marble, pathlib.Path(folder), tokens, GENERATORS, RINGS)
    (ROOT / "docs" / "balance.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Plots runs of examples/train_packed.py (their --out files), the first being what the others are compared with.

scripts/plot_training.py one.json ring4.json mesh22.json --out docs/training.svg
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def title(run):
    """Mesh and parallelism of a run."""
    options = run["options"]
    return f"ring {run['ring']} x ulysses {options['ulysses']}" + (", FSDP2" if options["fsdp"] else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in options.runs]

    plt.rcParams.update({"svg.hashsalt": "marble", "svg.fonttype": "none"})
    figure, (losses, differences) = plt.subplots(2, 1, figsize=(7, 5.5), sharex=True, height_ratios=(2, 1))
    for width, run in zip(range(len(runs) * 2, 0, -2), runs, strict=True):
        losses.plot(run["losses"], linewidth=width, label=title(run))
    for color, run in enumerate(runs[1:], start=1):
        ratios = [abs(loss / one - 1) for loss, one in zip(run["losses"], runs[0]["losses"], strict=True)]
        differences.semilogy([max(ratio, 1e-9) for ratio in ratios], ".", color=f"C{color}")
    losses.set_ylabel("loss")
    losses.legend()
    differences.set_ylabel("relative difference\nfrom " + title(runs[0]))
    differences.set_xlabel("step")
    differences.set_ylim(1e-9, 1e-3)
    figure.tight_layout()
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()

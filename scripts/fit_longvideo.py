#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Predicted times beside the paper's four long-video rows, for its own strategy, over many seeds (docs/hardware.md).

    scripts/fit_longvideo.py build/tools/marble/marble [--hardware h100] [--seeds 24]
"""

import argparse
import json
import statistics
import subprocess

ROWS = [(2**20, 32, 407), (2 * 2**20, 32, 1015), (4 * 2**20, 32, 1861), (8 * 2**20, 64, 2190)]  # tokens, GPUs, ms


def predicted_ms(options, tokens, gpus, seed):
    command = [options.marble, "simulate", "bagel-longvideo", "--tokens", str(tokens), "--seed", str(seed),
               "--gpus", str(gpus), "--ulysses", "4", "--hardware", options.hardware, "--placement", "chunks",
               "--strategy", "ring", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["layers"][0]["predicted_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("marble", help="the command line's program")
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--seeds", type=int, default=24)
    options = parser.parse_args()
    print("| tokens / GPUs | paper, ms | median, ms | off | least | most |\n|---|---|---|---|---|---|")
    for tokens, gpus, paper in ROWS:
        times = [predicted_ms(options, tokens, gpus, seed) for seed in range(options.seeds)]
        median = statistics.median(times)
        print(f"| {tokens // 2**20}M / {gpus} | {paper} | {median:.0f} | {100 * (median / paper - 1):+.0f} % | "
              f"{min(times):.0f} | {max(times):.0f} |", flush=True)


if __name__ == "__main__":
    main()

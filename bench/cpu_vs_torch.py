#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Times dense causal fp32 attention (8 heads of 128, 4,096 tokens): our CPU backend against PyTorch's CPU SDPA.

Both run in turn, round by round, so that they meet the same machine; medians over the rounds.

    cmake --preset cpu -DMARBLE_BENCH=ON && cmake --build --preset cpu
    python bench/cpu_vs_torch.py --bench build/cpu/bench/cpu_attention_bench
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

HEADS, TOKENS, HEAD_DIM = 8, 4096, 128
PASSES = {"forward": "fp32_forward", "forward_backward": "fp32_forward_backward"}


def time_marble(bench: Path, threads: int, name: str) -> float:
    """Milliseconds of one call, the mean of a short run."""
    command = [
        str(bench),
        f"--threads={threads}",
        f"--benchmark_filter=dense_causal/{name}/",
        "--benchmark_format=json",
        "--benchmark_min_time=0.5",
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (row,) = json.loads(output)["benchmarks"]
    return row["real_time"]


def time_torch(inputs: list[torch.Tensor], gradient: torch.Tensor, backward: bool) -> float:
    """Milliseconds of one call, the mean of a short run after a first call."""

    def call() -> None:
        if backward:
            F.scaled_dot_product_attention(*inputs, is_causal=True).backward(gradient)
        else:
            with torch.no_grad():
                F.scaled_dot_product_attention(*inputs, is_causal=True)

    call()
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < 0.5:
        call()
        calls += 1
    return (time.perf_counter() - start) * 1e3 / calls


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def commit() -> str:
    root = Path(__file__).parent
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, required=True, help="the cpu_attention_bench program")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cpu_vs_torch.json")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    shape = (1, HEADS, TOKENS, HEAD_DIM)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(shape)
    times: dict[str, dict[str, list[float]]] = {name: {"marble": [], "torch": []} for name in PASSES}
    for _ in range(arguments.rounds):
        for name, benchmark in PASSES.items():
            times[name]["marble"].append(time_marble(arguments.bench, arguments.threads, benchmark))
            times[name]["torch"].append(time_torch(inputs, gradient, name == "forward_backward"))

    rows = []
    for name, both in times.items():
        marble, pytorch = statistics.median(both["marble"]), statistics.median(both["torch"])
        rows.append(
            {
                "pass": name,
                "marble_ms": round(marble, 2),
                "torch_ms": round(pytorch, 2),
                "speed_over_torch": round(pytorch / marble, 3),
                "rounds_ms": {key: [round(value, 2) for value in values] for key, values in both.items()},
            }
        )
        print(f"{name}: marble {marble:.1f} ms, torch {pytorch:.1f} ms, {pytorch / marble:.2f} x torch's speed")
    result = {
        "command": "python bench/cpu_vs_torch.py --bench <build>/bench/cpu_attention_bench "
        f"--threads {arguments.threads} --rounds {arguments.rounds}",
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 2)},
        "torch": torch.__version__,
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": arguments.threads,
        "case": {"mask": "causal", "dtype": "fp32", "heads": HEADS, "tokens": TOKENS, "head_dim": HEAD_DIM},
        "rows": rows,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Speed of kernels beside a link that is kept busy throughout, over their speed alone.

torchrun --nproc-per-node 2 bench/busy_link.py --lib libmarble_gpu_bench.so [--out rows.jsonl]
"""

import argparse
import statistics

import torch
import torch.distributed as dist

from cp_case import Case, random_tensors
from cp_marble import Group, Library, Marble
from cp_timing import Rows, begin_job, end_job, interleaved, say, slowest, time_limit

LINK_BYTES_PER_MS = 389e6  # the copy engine's speed, from which the number of exchanges follows


def beside(group, work, exchanges, send, landing):
    """Milliseconds of the work while exchanges follow each other, and until the last of those has come."""
    torch.cuda.synchronize()
    dist.barrier()
    start, end, last = (torch.cuda.Event(True) for _ in range(3))
    tickets = [group.begin(send, landing) for _ in range(exchanges)]
    start.record()
    work()
    end.record()
    for ticket in tickets:
        group.wait(ticket)
    last.record()
    group.check()
    return start.elapsed_time(end), start.elapsed_time(last)


def measure(library, rows):
    group, alone = Group(library), Group(library, alone=True)
    case = Case("causal 32k 32/4 on each GPU", "causal", 32768, 32, 4)
    layer = Marble(alone, case)
    layer.load(random_tensors(case))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    send = torch.randint(0, 255, (512 << 20,), device="cuda", dtype=torch.uint8)
    landing = group.landing(send)
    works = {"matmul": lambda: [a @ b for _ in range(24)], "attention": lambda: [layer.forward() for _ in range(2)]}
    works["layer"] = layer.layer
    for name, work in works.items():
        alone_ms = interleaved({"alone": work}, 5)["alone"]
        exchanges = int(1.5 * alone_ms / (send.numel() / LINK_BYTES_PER_MS)) + 2
        samples = [beside(group, work, exchanges, send, landing) for _ in range(5)]
        busy_ms, link_ms = (statistics.median(slowest(values)) for values in zip(*samples))
        # A link that fell silent before the work was done would prove nothing.
        status = "busy link" if link_ms > busy_ms else "link fell silent"
        speed = alone_ms / busy_ms
        rows.add(case=case.name, work=name, status=status, alone_ms=round(alone_ms, 3), busy_ms=round(busy_ms, 3),
                 link_ms=round(link_ms, 3), speed=round(speed, 4), detail=layer.detail)  # fmt: skip
        say(
            f"{status}: {name} alone {alone_ms:.2f} ms, beside {busy_ms:.2f} ms: speed {speed:.3f}; link {link_ms:.1f} ms"
        )
    layer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out")
    parser.add_argument("--commit", help="instead of the head of this tree")
    arguments = parser.parse_args()
    begin_job()
    rows = Rows(arguments.out, arguments.commit)
    with torch.cuda.stream(torch.cuda.Stream()), time_limit(60):
        measure(Library(arguments.lib), rows)
    end_job()


if __name__ == "__main__":
    main()

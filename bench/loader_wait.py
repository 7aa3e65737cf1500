# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""How long a training step waits for a plan that loader workers make: one JSON row.

python bench/loader_wait.py --tokens 1000000 --ring 8 --workers 2 --step-ms 2000
"""

import argparse
import json
import statistics
import time

import marble
import torch
from torch.utils.data import DataLoader, IterableDataset


class Packs(IterableDataset):
    """Layouts of a generator, each with a new seed; worker i makes every i-th."""

    def __init__(self, name, tokens, steps):
        self.name, self.tokens, self.steps = name, tokens, steps

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for step in range(worker.id, self.steps, worker.num_workers):
            yield {"layout": marble.Layout.generate(self.name, self.tokens, seed=step)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generator", default="gemma3-docs")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--ring", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--step-ms", type=float, default=2000.0, help="length of the pretended training step")
    options = parser.parse_args()

    model, mesh = marble.generator(options.generator).model, marble.Mesh(ring=options.ring)
    layout = marble.Layout.generate(options.generator, options.tokens)
    start = time.perf_counter()
    plan = marble.plan(layout, model=model, mesh=mesh)
    plan_ms = (time.perf_counter() - start) * 1e3

    collate = marble.PlanningCollate(lambda batch: batch["layout"], model=model, mesh=mesh)
    packs = Packs(options.generator, options.tokens, options.steps)
    loader = DataLoader(
        packs, batch_size=None, collate_fn=collate, num_workers=options.workers, multiprocessing_context="fork"
    )
    waits = []
    batches = iter(loader)
    for _ in range(options.steps):
        start = time.perf_counter()
        next(batches)
        waits.append((time.perf_counter() - start) * 1e3)
        time.sleep(options.step_ms / 1e3)
    print(
        json.dumps(
            {
                "generator": options.generator,
                "tokens": options.tokens,
                "ring": options.ring,
                "workers": options.workers,
                "plan_ms": round(plan_ms, 1),
                "plan_bytes": sum(tensor.numel() for tensor in (*plan.rank_plans, plan.data)) + 8 * plan.rows,
                "step_ms": options.step_ms,
                "first_wait_ms": round(waits[0], 1),
                "median_wait_ms": round(statistics.median(waits[1:]), 2),
                "longest_wait_ms": round(max(waits[2:]), 2),
            }
        )
    )


if __name__ == "__main__":
    main()

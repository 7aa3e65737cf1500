#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Layers over all GPUs of a torchrun job: MARBLE beside PyTorch's context parallelism, in one run.

    torchrun --nproc-per-node 2 bench/two_gpus.py --lib libmarble_gpu_bench.so [--out rows.jsonl] [--only NAME …]

For each case and each mode of each system: output and gradients are compared with exact attention at sampled rows and keys;
a mode whose error exceeds LIMIT times that of MARBLE on one GPU is listed as wrong and not timed. The others are swept once,
then the best mode of each system is timed, forward and backward, by turns. A time is the median over the repeats of the slowest
rank's, by device events; TFLOP/s count legal pairs only, for one GPU.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from cp_case import Case, Reference, random_tensors
from cp_marble import Group, Library, Marble
from cp_peers import FLEX_MODES, SDPA_MODES, TorchFlex, TorchSdpa

CHECK_TOKENS = 131072  # longer packs are checked at this length
LIMIT = 3.0  # peers sum bf16 partials; wrong masks and races are orders of magnitude off
TENSORS = ("out", "dq", "dk", "dv")
MARBLE_MODES = ["auto", "ring", "alltoall", "ulysses"]

CASES = [
    Case("causal 64k 32/4", "causal", 65536, 32, 4),
    Case("causal 64k 32/32", "causal", 65536, 32, 32),
    Case("documents 128k", "qwen3vl-docs", 131072, 32, 4),
    Case("window 1024, 128k", "gemma3-docs", 131072, 32, 16, window=1024),
    Case("noise 128k", "bagel-mix", 131072, 28, 4),
    Case("groups 128k", "molmo2-sft", 131072, 32, 8),
    Case("causal 128k 32/4", "causal", 131072, 32, 4),
    Case("causal 256k 32/4", "causal", 262144, 32, 4),
]


BEGUN = time.monotonic()


def say(text):
    if dist.get_rank() == 0:
        print(f"{time.monotonic() - BEGUN:5.0f} s  {text}", flush=True)


def summed(tensor):
    dist.all_reduce(tensor)
    return tensor


def slowest(values):
    """Element by element, the largest of all ranks."""
    tensor = torch.tensor(values, dtype=torch.float64, device="cuda")
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def time_call(call):
    """Milliseconds of a call that all ranks begin together."""
    torch.cuda.synchronize()
    dist.barrier()
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def interleaved(calls, repeats, warm_up=1):
    """Median milliseconds of each call, one after the other `repeats` times."""
    times = {name: [] for name in calls}
    for turn in range(warm_up + repeats):
        for name, call in calls.items():
            ms = time_call(call)
            if turn >= warm_up:
                times[name].append(ms)
    return {name: statistics.median(slowest(values)) for name, values in times.items()}


def agreed(error):
    """Whether any rank failed; collective, so that all ranks go on together."""
    return bool(slowest([float(error is not None)])[0])


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.library = Library(arguments.lib)
        self.mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        self.group = None if arguments.peers_only else Group(self.library)
        self.alone = Group(self.library, alone=True)
        self.rows = []
        versions = f"CUDA {torch.version.cuda}, torch {torch.__version__.split('+')[0]}"
        versions += f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
        self.about = {
            "machine": f"{dist.get_world_size()}x {torch.cuda.get_device_name()}, {versions}",
            "commit": arguments.commit,
            "date": datetime.date.today().isoformat(),
            "command": f"torchrun --nproc-per-node {dist.get_world_size()} bench/two_gpus.py",
        }

    def row(self, case, system, **values):
        entry = {"case": case.name, "system": system.name, "mode": system.mode, "tokens": case.tokens}
        entry |= {"heads": case.heads, "kv_heads": case.kv_heads, "head_dim": case.head_dim, "window": case.window}
        entry |= {"gpus": dist.get_world_size(), "detail": system.detail} | values | self.about
        self.rows.append(entry)
        return entry

    def write(self):
        if self.arguments.out and dist.get_rank() == 0:
            pathlib.Path(self.arguments.out).write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def systems(self, case):
        """(class, mode) of all that can run the case."""
        found = [] if self.group is None else [(Marble, mode) for mode in MARBLE_MODES]
        found += [(TorchSdpa, mode) for mode in SDPA_MODES] if case.layout == "causal" else []
        found += [(TorchFlex, mode) for mode in FLEX_MODES] if case.layout != "causal" else []
        return [(kind, mode) for kind, mode in found if not self.arguments.modes or mode in self.arguments.modes]

    def make(self, kind, case, mode, tracks):
        if kind is Marble:
            return Marble(self.group, case, mode)
        return TorchFlex(self.mesh, case, mode, tracks) if kind is TorchFlex else TorchSdpa(self.mesh, case, mode)

    def tracks(self, case):
        layer = Marble(self.alone, case)
        found = layer.tracks(), layer.pairs
        layer.close()
        return found

    def attempt(self, fn):
        """fn's result and why it failed on this rank (None: it did not), after all ranks have tried."""
        result, error = None, None
        try:
            result = fn()
            torch.cuda.synchronize()
        except Exception as problem:  # a peer's failure is a row, not the end
            error = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"[:200]
        return result, error

    def check(self, case):
        """The modes that are right; the others become rows."""
        small = case.smaller(CHECK_TOKENS)
        tracks, _ = self.tracks(small)
        tensors = random_tensors(small)
        reference = Reference(small, tensors, tracks)
        own = self.one_gpu_errors(small, tensors, reference)
        say(f"  one GPU's errors: {dict(zip(TENSORS, (f'{error:.2e}' for error in own)))}")
        right = []
        for kind, mode in self.systems(case):
            system = None

            def run():
                nonlocal system
                system = self.make(kind, small, mode, tracks)
                system.load(tensors)
                run_within(system, system.layer)
                return system.results()

            results, error = self.attempt(run)
            if agreed(error):
                say(f"  {kind.name} {mode}: failed: {error}")
                if system is not None:
                    self.row(case, system, status="failed", reason=error)
                continue
            errors = reference.errors(results, system.positions, summed)
            ratios = {name: round(mine / one, 3) for name, mine, one in zip(TENSORS, errors, own)}
            if all(ratio <= LIMIT for ratio in ratios.values()):
                say(f"  {kind.name} {mode}: right")
                right.append((kind, mode, ratios))
            else:
                say(f"  {kind.name} {mode}: WRONG, errors over one GPU's: {ratios}")
                self.row(case, system, status="wrong", errors_over_one_gpu=ratios)
            system.close()
        return right

    def one_gpu_errors(self, case, tensors, reference):
        """Of MARBLE on one GPU."""
        layer = Marble(self.alone, case)
        layer.load(tensors)
        layer.layer()
        errors = reference.errors(layer.results(), layer.positions, lambda sums: sums)
        layer.close()
        return errors

    def run_case(self, case):
        say(f"{case.name}: {case.heads}/{case.kv_heads} heads of {case.head_dim}")
        right = self.check(case)
        tracks, pairs = self.tracks(case)
        tensors = random_tensors(case)
        best = {}
        for kind, mode, ratios in right:
            system = self.make(kind, case, mode, tracks)
            _, error = self.attempt(lambda: system.load(tensors))
            if not agreed(error):
                ms, error = self.attempt(lambda: run_within(system, lambda: self.trial(system)))
            if agreed(error):
                say(f"  {kind.name} {mode}: failed: {error}")
                self.row(case, system, status="failed", reason=error)
            else:
                self.row(case, system, status="swept", layer_ms=round(ms, 3), errors_over_one_gpu=ratios)
                say(f"  {kind.name} {mode}: {ms:.2f} ms; errors over one GPU's {ratios}; {system.detail}")
                if kind.name not in best or ms < best[kind.name][0]:
                    best[kind.name] = (ms, kind, mode, ratios)
            system.close()
            del system
            torch.cuda.empty_cache()
        self.compare(case, best, tensors, tracks, pairs)

    @staticmethod
    def trial(system):
        return interleaved({"layer": system.layer}, repeats=2)["layer"]

    def compare(self, case, best, tensors, tracks, pairs):
        systems = [(self.make(kind, case, mode, tracks), ratios) for _, kind, mode, ratios in best.values()]
        for system, _ in systems:
            system.load(tensors)
        calls = {}
        for system, _ in systems:
            calls[system.name, "forward_ms"] = lambda s=system: run_within(s, s.forward)
            calls[system.name, "layer_ms"] = lambda s=system: run_within(s, s.layer)
        times = interleaved(calls, self.arguments.repeats)
        gpus = dist.get_world_size()
        for system, ratios in systems:
            forward, layer = times[system.name, "forward_ms"], times[system.name, "layer_ms"]
            entry = self.row(
                case, system, status="timed", forward_ms=round(forward, 3), layer_ms=round(layer, 3), legal_pairs=pairs,
                forward_tflops=round(case.flops(pairs, True) / forward / 1e9 / gpus, 1),
                layer_tflops=round(case.flops(pairs) / layer / 1e9 / gpus, 1), errors_over_one_gpu=ratios,
            )  # fmt: skip
            ratio = layer / times[Marble.name, "layer_ms"] if (Marble.name, "layer_ms") in times else float("nan")
            say(
                f"  => {system.name} {system.mode}: forward {forward:.2f} ms {entry['forward_tflops']:.0f}, layer "
                f"{layer:.2f} ms {entry['layer_tflops']:.0f} TFLOP/s a GPU; {ratio:.3f} of marble's time"
            )
            system.close()

    def scaling(self, case):
        """The same layer on one GPU, by rank 0."""
        systems = [Marble(self.alone, case)] + ([] if self.group is None else [Marble(self.group, case)])
        tensors = random_tensors(case)
        for system in systems:
            system.load(tensors)
        calls = {"one": systems[0].layer if dist.get_rank() == 0 else lambda: None}
        if self.group is not None:
            calls["all"] = systems[1].layer
        times = interleaved(calls, max(1, self.arguments.repeats // 2))
        speedup = round(times["one"] / times["all"], 3) if "all" in times else None
        self.row(case, systems[-1], status="scaling", one_gpu_ms=round(times["one"], 3), speedup=speedup)
        say(f"{case.name}: one GPU {times['one']:.2f} ms, all {times.get('all', 0):.2f} ms, speed-up {speedup}")
        for system in systems:
            system.close()

    def busy_link(self):
        """Speed of kernels beside a link that is kept busy throughout, over their speed alone."""
        case = Case("causal 32k 32/4 on each GPU", "causal", 32768, 32, 4)
        layer = Marble(self.alone, case)
        layer.load(random_tensors(case))
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
        send = torch.randint(0, 255, (512 << 20,), device="cuda", dtype=torch.uint8)
        landing = self.group.landing(send)

        def beside(work, exchanges):
            """Milliseconds of the work while exchanges follow each other, and until the last of those has come."""
            torch.cuda.synchronize()
            dist.barrier()
            start, end, last = (torch.cuda.Event(True) for _ in range(3))
            tickets = [self.group.begin(send, landing) for _ in range(exchanges)]
            start.record()
            work()
            end.record()
            for ticket in tickets:
                self.group.wait(ticket)
            last.record()
            self.group.check()
            return start.elapsed_time(end), start.elapsed_time(last)

        works = {"matmul": lambda: [a @ b for _ in range(24)], "attention": lambda: [layer.forward() for _ in range(2)]}
        works["layer"] = layer.layer
        for name, work in works.items():
            alone = interleaved({"alone": work}, 5)["alone"]
            link_ms = send.numel() / 389e6  # at the copy engine's speed
            samples = [beside(work, int(1.5 * alone / link_ms) + 2) for _ in range(5)]
            busy, link = (statistics.median(slowest(values)) for values in zip(*samples))
            # A link that fell silent before the work was done would prove nothing.
            self.row(case, layer, status="busy link" if link > busy else "link fell silent", work=name,
                     alone_ms=round(alone, 3), busy_ms=round(busy, 3), link_ms=round(link, 3),
                     speed=round(alone / busy, 4))  # fmt: skip
            say(f"busy link: {name} alone {alone:.2f} ms, beside {busy:.2f} ms: speed {alone / busy:.3f}; link {link:.1f} ms")
        layer.close()


def run_within(system, fn):
    return system.within(fn) if hasattr(system, "within") else fn()


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                          cwd=pathlib.Path(__file__).parent)  # fmt: skip
    return done.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="cases whose name begins so; scaling, busy")
    parser.add_argument("--modes", nargs="*", help="only these modes")
    parser.add_argument("--peers-only", action="store_true", help="leave MARBLE out")
    parser.add_argument("--commit", default=commit())
    arguments = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    torch._dynamo.config.recompile_limit = 256
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))

    def wanted(name):
        return not arguments.only or any(name.startswith(prefix) for prefix in arguments.only)

    with torch.cuda.stream(torch.cuda.Stream()):
        bench = Bench(arguments)
        if wanted("busy") and bench.group is not None:
            bench.busy_link()
        if wanted("scaling"):
            bench.scaling(Case("causal 256k 32/4", "causal", 262144, 32, 4))
        for case in filter(lambda case: wanted(case.name), CASES):
            bench.run_case(case)
            bench.write()
            torch.cuda.empty_cache()
        bench.write()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())

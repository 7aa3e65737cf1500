#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Layers over all GPUs of a torchrun job, of any number: MARBLE beside PyTorch's context parallelism, in one run.

    torchrun --nproc-per-node 2 bench/across_gpus.py --lib libmarble_gpu_bench.so [--out rows.jsonl] [--only NAME …]
    torchrun --nproc-per-node 8 bench/across_gpus.py --lib libmarble_gpu_bench.so --generators 262144

For each case and each mode of each system: output and gradients are compared with exact attention at sampled rows and
keys; a mode whose error exceeds LIMIT times that of MARBLE on one GPU is listed as wrong and not timed. The others are
swept once, then the best mode of each system is timed, forward and backward, by turns. A time is the median over the
repeats of the slowest rank's, by device events; TFLOP/s count legal pairs only, for one GPU. Rows come one by one.
"""

import argparse
import dataclasses
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from cp_case import CASES, GENERATORS, Case, Reference, generator_case, random_tensors
from cp_marble import PLACEMENTS, Group, Library, Marble, mesh_modes
from cp_peers import FLEX_MODES, TorchFlex, TorchSdpa, sdpa_modes
from cp_timing import BEGUN, Rows, agreed, attempt, begin_job, end_job, interleaved, say, slowest, summed, time_limit

CHECK_TOKENS = 262144  # longer packs are checked at this length
LIMIT = 3.0  # peers sum bf16 partials; wrong masks and races are orders of magnitude off
TENSORS = ("out", "dq", "dk", "dv")
SCALING = [Case("causal 256k 32/4", "causal", 262144, 32, 4), Case("noise 256k", "bagel-mix", 262144, 28, 4)]


@dataclasses.dataclass
class Pack:
    case: Case
    tracks: list
    pairs: int  # legal ones
    tensors: tuple


@dataclasses.dataclass
class Trial:
    mode: str
    ms: float
    ratios: dict  # errors over one GPU's, by tensor


class Check:
    """Exact attention of a pack, and the errors of MARBLE on one GPU."""

    def __init__(self, alone, pack):
        self.pack = pack
        self.reference = Reference(pack.case, pack.tensors, pack.tracks)
        layer = Marble(alone, pack.case)
        layer.load(pack.tensors)
        layer.layer()
        self.one_gpu = self.reference.errors(layer.results(), layer.positions, lambda sums: sums)
        layer.close()

    def ratios(self, system):
        errors = self.reference.errors(system.results(), system.positions, summed)
        return {name: round(mine / one, 3) for name, mine, one in zip(TENSORS, errors, self.one_gpu)}


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.library = Library(arguments.lib)
        self.mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        self.group = None if arguments.peers_only else Group(self.library)
        self.alone = Group(self.library, alone=True)
        self.rows = Rows(arguments.out, arguments.commit)

    def close(self):
        for group in filter(None, (self.group, self.alone)):
            group.close()

    def row(self, case, system, **values):
        about = {"case": case.name, "system": system.name, "mode": system.mode, "tokens": case.tokens}
        about |= {"heads": case.heads, "kv_heads": case.kv_heads, "head_dim": case.head_dim, "window": case.window}
        return self.rows.add(**about, detail=system.detail, **values)

    def marble_modes(self, case):
        """The planner's choice, of all and over each mesh; over the longest ring, what it chose among."""
        meshes = mesh_modes(dist.get_world_size())
        modes = ["auto", *meshes]
        if case.keeps_order:
            return modes
        if self.arguments.placements:
            return modes + [f"{meshes[0]} {placement}" for placement in PLACEMENTS]
        return modes + [f"{meshes[0]} {strategy}" for strategy in ("ring", "alltoall")]

    def systems(self, case):
        """(class, mode) of all that can run the case."""
        found = [] if self.group is None else [(Marble, mode) for mode in self.marble_modes(case)]
        found += [(TorchSdpa, mode) for mode in sdpa_modes(case.tokens)] if case.layout == "causal" else []
        found += [(TorchFlex, mode) for mode in FLEX_MODES] if case.layout != "causal" else []
        return [(kind, mode) for kind, mode in found if not self.arguments.modes or mode in self.arguments.modes]

    def pack(self, case):
        layer = Marble(self.alone, case)
        pack = Pack(case, layer.tracks(), layer.pairs, random_tensors(case))
        layer.close()
        return pack

    def loaded(self, kind, mode, pack):
        if kind is Marble:
            system = Marble(self.group, pack.case, mode)
        elif kind is TorchFlex:
            system = TorchFlex(self.mesh, pack.case, mode, pack.tracks)
        else:
            system = TorchSdpa(self.mesh, pack.case, mode)
        system.load(pack.tensors)
        return system

    def run_case(self, case):
        say(f"{case.name}: {case.heads}/{case.kv_heads} heads of {case.head_dim}")
        small = self.pack(case.smaller(CHECK_TOKENS))
        check = Check(self.alone, small)
        say(f"  one GPU's errors: {dict(zip(TENSORS, (f'{error:.2e}' for error in check.one_gpu)))}")
        pack = small if small.case == case else self.pack(case)
        best = {}
        for kind, mode in self.systems(case):
            with time_limit(self.arguments.limit):
                trial = self.try_mode(kind, mode, check, pack)
            torch.cuda.empty_cache()
            if trial and (kind not in best or trial.ms < best[kind].ms):
                best[kind] = trial
        del check, small
        with time_limit(self.arguments.limit):
            self.compare(pack, best)

    def try_mode(self, kind, mode, check, pack):
        """Runs a mode for the first time; what is wrong or fails becomes a row, what is right is swept."""
        begun = time.monotonic()
        system, error = attempt(lambda: ran_once(self.loaded(kind, mode, check.pack)))
        if agreed(error):
            return self.failed(kind, mode, pack.case, error)
        ratios = check.ratios(system)
        if not all(ratio <= LIMIT for ratio in ratios.values()):  # NaN is wrong, too
            say(f"  {kind.name} {mode}: WRONG, errors over one GPU's {ratios}")
            self.row(check.pack.case, system, status="wrong", errors_over_one_gpu=ratios)
            return system.close()
        if pack is not check.pack:
            system.close()
            system, error = attempt(lambda: ran_once(self.loaded(kind, mode, pack)))
            if agreed(error):
                return self.failed(kind, mode, pack.case, error)
        first = time.monotonic() - begun
        ms, error = attempt(lambda: interleaved({"": lambda: run_within(system, system.layer)}, 2, warm_up=0)[""])
        if agreed(error):
            return self.failed(kind, mode, pack.case, error)
        values = {"predicted_ms": round(system.predicted_ms, 3)} if kind is Marble else {}
        self.row(pack.case, system, status="swept", layer_ms=round(ms, 3), errors_over_one_gpu=ratios, **values)
        say(f"  {kind.name} {mode}: {ms:.2f} ms; errors over one GPU's {ratios}; first {first:.1f} s; {system.detail}")
        system.close()
        return Trial(mode, ms, ratios)

    def failed(self, kind, mode, case, error):
        say(f"  {kind.name} {mode}: failed: {error}")
        self.rows.add(case=case.name, system=kind.name, mode=mode, tokens=case.tokens, status="failed", reason=error)

    def compare(self, pack, best):
        """The best modes by turns; `best` holds a trial of each system."""
        case = pack.case
        systems = [(self.loaded(kind, trial.mode, pack), trial.ratios) for kind, trial in best.items()]
        calls = {}
        for system, _ in systems:
            calls[system.name, "forward_ms"] = lambda s=system: run_within(s, s.forward)
            calls[system.name, "layer_ms"] = lambda s=system: run_within(s, s.layer)
        times = interleaved(calls, self.arguments.repeats)
        gpus = dist.get_world_size()
        for system, ratios in systems:
            forward, layer = times[system.name, "forward_ms"], times[system.name, "layer_ms"]
            entry = self.row(
                case, system, status="timed", forward_ms=round(forward, 3), layer_ms=round(layer, 3),
                legal_pairs=pack.pairs,
                forward_tflops=round(case.flops(pack.pairs, True) / forward / 1e9 / gpus, 1),
                layer_tflops=round(case.flops(pack.pairs) / layer / 1e9 / gpus, 1),
                errors_over_one_gpu=ratios,
            )  # fmt: skip
            ratio = layer / times[Marble.name, "layer_ms"] if (Marble.name, "layer_ms") in times else float("nan")
            say(
                f"  => {system.name} {system.mode}: forward {forward:.2f} ms {entry['forward_tflops']:.0f}, layer "
                f"{layer:.2f} ms {entry['layer_tflops']:.0f} TFLOP/s a GPU; {ratio:.3f} of marble's time"
            )
            system.close()

    def scaling(self, case):
        """The same layer on one GPU, by rank 0."""
        systems = [Marble(self.alone, case), Marble(self.group, case)]
        tensors = random_tensors(case)
        for system in systems:
            system.load(tensors)
        calls = {"one": systems[0].layer if dist.get_rank() == 0 else lambda: None, "all": systems[1].layer}
        times = interleaved(calls, max(1, self.arguments.repeats // 2))
        speedup = round(times["one"] / times["all"], 3)
        self.row(case, systems[1], status="scaling", one_gpu_ms=round(times["one"], 3), layer_ms=round(times["all"], 3),
                 speedup=speedup)  # fmt: skip
        say(f"{case.name}: one GPU {times['one']:.2f} ms, all {times['all']:.2f} ms, speed-up {speedup}")
        for system in systems:
            system.close()

    def soak_over(self, rung, layers):
        """A soak over one rung of the transport; a rung that is not possible here becomes a row."""
        os.environ["MARBLE_TRANSPORT_RUNG"] = self.rows.about["rung"] = rung
        group, error = attempt(lambda: Group(self.library))
        if agreed(error):
            say(f"soak over {rung}: {error}")
            self.rows.add(case="soak", system=Marble.name, status="no rung", reason=error)
            return
        self.soak(group, layers)
        group.close()

    def soak(self, group, layers):
        """Layers of changing layouts, each bound anew: time, and what the GPU's memory holds meanwhile."""
        begun, used = time.monotonic(), []
        for i in range(layers):
            case = generator_case(GENERATORS[i % len(GENERATORS)], 8192 + 512 * (i % 17), seed=i)
            layer = Marble(group, case)
            layer.load(random_tensors(case))
            layer.layer()
            group.check()
            layer.close()
            if (i + 1) % (layers // 5) == 0:
                torch.cuda.empty_cache()
                free, total = torch.cuda.mem_get_info()
                used.append(total - free)
        seconds, *used = slowest([time.monotonic() - begun, *used])
        self.rows.add(case="soak", system=Marble.name, status="soak", layers=layers, seconds=round(seconds, 1),
                      transport=group.describe(), memory_bytes=[int(bytes_) for bytes_ in used])  # fmt: skip
        say(f"soak: {layers} layers in {seconds:.1f} s; MiB held: {[round(bytes_ / 2**20) for bytes_ in used]}; "
            f"{group.describe()}")  # fmt: skip


def ran_once(system):
    run_within(system, system.layer)
    return system


def run_within(system, fn):
    return system.within(fn) if hasattr(system, "within") else fn()


def run(bench, arguments):
    named = arguments.only or []

    def is_named(name):
        return any(name.startswith(prefix) for prefix in named)

    def in_time():
        return slowest([time.monotonic() - BEGUN])[0] < arguments.budget

    cases = CASES
    if arguments.generators:
        cases = [generator_case(name, arguments.generators) for name in GENERATORS]
    for case in cases:
        if named and not is_named(case.name):
            continue
        if not in_time():
            say(f"{case.name}: left out, as {arguments.budget} s are over")
            continue
        bench.run_case(case)
        torch.cuda.empty_cache()
    if is_named("scaling"):
        for case in SCALING:
            with time_limit(arguments.limit):
                bench.scaling(case)
    if is_named("soak"):
        for rung in arguments.rungs:
            with time_limit(10 * arguments.limit):
                bench.soak_over(rung, 1000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="cases whose name begins so; scaling; soak")
    parser.add_argument("--modes", nargs="*", help="only these modes")
    parser.add_argument(
        "--generators", type=int, metavar="TOKENS", help="the twelve generators instead of the usual cases"
    )
    parser.add_argument("--placements", action="store_true", help="sweep MARBLE's placements, not its strategies")
    parser.add_argument("--peers-only", action="store_true", help="leave MARBLE out")
    parser.add_argument("--rungs", nargs="*", default=["copy", "put", "sendrecv"], help="of the soak")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one mode; a longer one ends the run")
    parser.add_argument("--budget", type=int, default=3600, help="seconds after which no case is begun")
    parser.add_argument("--commit", help="instead of the head of this tree")
    arguments = parser.parse_args()
    torch._dynamo.config.recompile_limit = 256
    begin_job()
    with torch.cuda.stream(torch.cuda.Stream()):
        bench = Bench(arguments)
        run(bench, arguments)
        bench.close()
    end_job()


if __name__ == "__main__":
    main()

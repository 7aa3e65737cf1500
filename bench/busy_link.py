#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What transfers take from the multiprocessors: the speed of kernels beside a link that is kept busy throughout, over
their speed alone; and every kernel that ran during exchanges.

torchrun --nproc-per-node 2 bench/busy_link.py --lib libmarble_gpu_bench.so [--out rows.jsonl] [--rungs copy sendrecv]

The link is a transport on a stream of its own, with two exchanges of 512 MiB in flight, each way. An event behind each
tells when it had come, so that the link's speed while the work ran is known, as is that of its slowest exchange.
"""

import argparse
import collections
import itertools
import os
import statistics

import torch
import torch.distributed as dist
from torch.autograd import DeviceType

from cp_case import Case, random_tensors
from cp_marble import Group, Library, Marble
from cp_timing import Rows, begin_job, end_job, say, slowest, time_call, time_limit

BYTES = 512 << 20  # of an exchange, each way
GUESS_MS = BYTES / 389e6  # of one at the copy engine's speed, from which the number of exchanges follows
AHEAD = 8  # exchanges that are asked for before the work is
BUSY = 0.5  # an exchange slower than this part of the speed alone would be a pause of the link


def least(values):
    """Element by element, the smallest of all ranks."""
    return [-value for value in slowest([-value for value in values])]


class Link:
    """Exchanges one after the other on a stream of their own, two in flight."""

    def __init__(self, library):
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            self.group = Group(library)
            self.send = torch.randint(0, 255, (BYTES,), device="cuda", dtype=torch.uint8)
        self.landing = self.group.landing(self.send)

    def start(self):
        """Forgets earlier exchanges; all ranks go on together."""
        torch.cuda.synchronize()
        dist.barrier()
        self.in_flight, self.arrivals = None, []

    def exchange(self, count):
        """Begins `count` more, each before the one before it is waited for."""
        for _ in range(count):
            following = self.group.begin(self.send, self.landing)
            if self.in_flight is not None:
                self.arrive()
            self.in_flight = following

    def arrive(self):
        self.group.wait(self.in_flight)
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        self.arrivals.append(event)

    def finish(self):
        self.arrive()
        self.group.check()

    def alone(self):
        """GB/s each way."""
        self.start()
        self.exchange(20)
        self.finish()
        return speeds([self.arrivals[0].elapsed_time(event) for event in self.arrivals])


def speeds(times):
    """GB/s of all and of the slowest exchange, from the times at which exchanges had come."""
    pauses = [after - before for before, after in itertools.pairwise(times)]
    return BYTES / 1e6 * len(pauses) / sum(pauses), BYTES / 1e6 / max(pauses)


def beside(link, work, exchanges):
    """Milliseconds of the work and of the link from the work's start on; GB/s of the exchanges that came meanwhile."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    link.start()
    link.exchange(AHEAD)
    torch.cuda.current_stream().wait_event(link.arrivals[0])
    start.record()
    work()
    end.record()
    link.exchange(exchanges)
    link.finish()
    work_ms = start.elapsed_time(end)
    times = [start.elapsed_time(event) for event in link.arrivals]
    # From the last that came before the work to the first that came after it: no pause of the link is left out.
    before = [time for time in times if time <= 0][-1:]
    meanwhile = [time for time in times if 0 < time < work_ms]
    after = [time for time in times if time >= work_ms][:1]
    return work_ms, times[-1], *(speeds(before + meanwhile + after) if before and after else (0.0, 0.0))


def measure(link, layer, rows):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    works = {"matmul": lambda: [a @ b for _ in range(24)], "attention": lambda: [layer.forward() for _ in range(2)]}
    works["layer"] = layer.layer
    link.alone()  # warms up
    alone_gb_s, _ = least(link.alone())
    for name, work in works.items():
        [guess_ms] = slowest([time_call(work)])  # the same on all ranks, as the number of exchanges must be
        exchanges = int(1.5 * guess_ms / GUESS_MS) + AHEAD
        # By turns, so that both find the GPU as warm.
        alone, samples = zip(*[(time_call(work), beside(link, work, exchanges)) for _ in range(6)])
        work_times, link_times, link_speeds, slowest_speeds = zip(*samples)
        alone_ms, busy_ms, link_ms = (statistics.median(slowest(x)) for x in (alone, work_times, link_times))
        gb_s, slowest_gb_s = statistics.median(least(link_speeds)), min(least(slowest_speeds))
        # A link that fell silent before the work was done would prove nothing.
        status = "busy link" if slowest_gb_s > BUSY * alone_gb_s else "link fell silent"
        speed = alone_ms / busy_ms
        rows.add(case=layer.case.name, work=name, status=status, alone_ms=round(alone_ms, 3), busy_ms=round(busy_ms, 3),
                 link_ms=round(link_ms, 3), speed=round(speed, 4), link_gb_s=round(gb_s, 1),
                 slowest_exchange_gb_s=round(slowest_gb_s, 1), link_alone_gb_s=round(alone_gb_s, 1),
                 transport=link.group.describe(), detail=layer.detail)  # fmt: skip
        say(f"{status}: {name} alone {alone_ms:.2f} ms, beside {busy_ms:.2f} ms: speed {speed:.3f}; link {gb_s:.0f} "
            f"GB/s (slowest exchange {slowest_gb_s:.0f}), alone {alone_gb_s:.0f}")  # fmt: skip


def ran_on_gpu(work):
    """Names and counts of all kernels, and of all copies and fills, that this GPU ran."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    names = collections.Counter(event.name for event in profile.events() if event.device_type == DeviceType.CUDA)
    copies = {name: count for name, count in names.items() if name.startswith(("Memcpy", "Memset"))}
    return {name: count for name, count in names.items() if name not in copies}, copies


def profile(link, rows):
    """What runs while exchanges run, beside a matmul, which shows that the profiler sees kernels."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    a @ a
    exchanges = 9

    def work():
        link.exchange(exchanges)
        a @ a
        link.finish()

    link.start()
    kernels, copies = ran_on_gpu(work)
    own, _ = ran_on_gpu(lambda: a @ a)
    transport_kernels = {name: count for name, count in kernels.items() if name not in own}
    if not own.keys() <= kernels.keys():
        raise RuntimeError(f"the profile lacks the matmul's kernels {own}")
    rows.add(status="profile", exchanges=exchanges, exchange_bytes=BYTES, matmul_kernels=own,
             transport_kernels=transport_kernels, copies=copies, transport=link.group.describe())  # fmt: skip
    say(f"{exchanges} exchanges of {BYTES >> 20} MiB: transport's kernels {transport_kernels or 'none'}, beside the "
        f"matmul's {own}; copies {copies}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out")
    parser.add_argument("--commit", help="instead of the head of this tree")
    parser.add_argument("--rungs", nargs="*", help="of the transport, one after the other; else its own choice")
    arguments = parser.parse_args()
    begin_job()
    rows = Rows(arguments.out, arguments.commit)
    library = Library(arguments.lib)
    with torch.cuda.stream(torch.cuda.Stream()):
        case = Case("causal 32k 32/4 on each GPU", "causal", 32768, 32, 4)
        layer = Marble(Group(library, alone=True), case)
        layer.load(random_tensors(case))
        for rung in arguments.rungs or [rows.about["rung"]]:
            if arguments.rungs:
                os.environ["MARBLE_TRANSPORT_RUNG"] = rows.about["rung"] = rung
            with time_limit(60):
                link = Link(library)
                measure(link, layer, rows)
                profile(link, rows)
                link.group.close()
        layer.close()
    end_job()


if __name__ == "__main__":
    main()

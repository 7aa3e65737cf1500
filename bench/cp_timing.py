# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What programs of a torchrun job share: collective times, progress, limits, and rows that are written at once."""

import contextlib
import datetime
import faulthandler
import itertools
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist

BEGUN = time.monotonic()


def begin_job():
    """This process's GPU and process group."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))


def end_job():
    say("done")
    with time_limit(20):
        dist.barrier()
        dist.destroy_process_group()


def say(text):
    if dist.get_rank() == 0:
        print(f"{time.monotonic() - BEGUN:5.0f} s  {text}", flush=True)


@contextlib.contextmanager
def time_limit(seconds):
    """A hang ends this process, and with it the job, saying where it was."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def summed(tensor):
    dist.all_reduce(tensor)
    return tensor


def slowest(values):
    """Element by element, the largest of all ranks."""
    tensor = torch.tensor(values, dtype=torch.float64, device="cuda")
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def agreed(error):
    """Whether any rank failed; collective, so that all ranks go on together."""
    return bool(slowest([float(error is not None)])[0])


def attempt(fn):
    """fn's result and why it failed on this rank (None: it did not)."""
    result, error = None, None
    try:
        result = fn()
        torch.cuda.synchronize()
    except Exception as problem:  # a peer's failure is a row, not the end
        error = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"[:200]
    return result, error


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
    """Median milliseconds of each call, one after the other `repeats` times: the slowest rank's."""
    times = {name: [] for name in calls}
    for turn in range(warm_up + repeats):
        for name, call in calls.items():
            ms = time_call(call)
            if turn >= warm_up:
                times[name].append(ms)
    return {name: statistics.median(slowest(values)) for name, values in times.items()}


class Rows:
    """JSON rows of rank 0, each added to a file as it comes, with the command that made it."""

    OF_THIS_MACHINE = ("--lib", "--out", "--commit")  # flags with a value that a reader has no use for

    def __init__(self, out, commit):
        self.path = pathlib.Path(out) if out and dist.get_rank() == 0 else None
        gpus = dist.get_world_size()
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        versions = f"CUDA {torch.version.cuda}, torch {torch.__version__.split('+')[0]}, NCCL {nccl}"
        self.about = {
            "gpus": gpus,
            "rung": os.environ.get("MARBLE_TRANSPORT_RUNG", "automatic"),
            "machine": f"{gpus}x {torch.cuda.get_device_name()}, {versions}",
            "commit": commit or head(),
            "date": datetime.date.today().isoformat(),
            "command": f"torchrun --nproc-per-node {gpus} {self.command()}",
        }

    def command(self):
        words = [f"bench/{pathlib.Path(sys.argv[0]).name}"]
        for before, word in itertools.pairwise(sys.argv):
            if word not in self.OF_THIS_MACHINE and before not in self.OF_THIS_MACHINE:
                words.append(shlex.quote(word))
        return " ".join(words)

    def add(self, **values):
        row = values | self.about
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row


def head():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                          cwd=pathlib.Path(__file__).parent)  # fmt: skip
    return done.stdout.strip() or "unknown"

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Worker processes that stay up between tests; worlds of one rank up to all of them are groups of theirs."""

import faulthandler
import importlib
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

HANG_LIMIT = 120.0  # seconds that one test function may take on any rank
HERE = str(pathlib.Path(__file__).parent)


class RankError(AssertionError):
    """What a rank raised, with its traceback."""


def _serve(rank: int, ranks: int, backend: str, transport: str, store: str, pipe) -> None:
    os.environ["MARBLE_TEST_TRANSPORT"] = transport
    sys.path.insert(0, HERE)
    import torch
    import torch.distributed as dist

    faulthandler.register(signal.SIGUSR1)
    on_gpu = "nccl" in backend
    torch.set_num_threads(1)
    # Fills fresh memory with NaN. Models of others use operators on GPUs that do not repeat.
    torch.use_deterministic_algorithms(True, warn_only=on_gpu)
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=HANG_LIMIT)
    )
    groups = {size: dist.new_group(list(range(size))) for size in range(1, ranks + 1)}
    while True:
        order = pipe.recv()
        if order is None:
            break
        size, module, function, arguments, options = order
        try:
            result = getattr(importlib.import_module(module), function)(groups[size], *arguments, **options)
            pipe.send((True, result))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class RankPool:
    """Starts its workers at the first use and again after a hang. Over NCCL each rank has the GPU of its number."""

    def __init__(self, ranks: int, backend: str = "gloo", transport: str = "auto") -> None:
        self._ranks = ranks
        self._backend = backend
        self.transport = transport
        self._workers = []

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "marble"])
        store = tempfile.mktemp(prefix="marble_store_")
        for rank in range(self._ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self._ranks, self._backend, self.transport, store, theirs), daemon=True
            )
            process.start()
            self._workers.append((process, ours))

    def _stop(self, kill: bool = False) -> None:
        for process, pipe in self._workers:
            if kill:
                process.kill()
            elif process.is_alive():
                pipe.send(None)
        for process, _ in self._workers:
            process.join(10)
        self._workers = []

    def _show_stacks(self) -> None:
        """Where each worker hangs, on stderr."""
        for process, _ in self._workers:
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.5)

    def run(self, size: int, function: str, *arguments, limit: float = HANG_LIMIT, **options) -> list:
        """Calls rank_checks.function(group, ...) on ``size`` ranks; returns what each returned."""
        return self.start(size, function, *arguments, **options)(limit)

    def start(self, size: int, function: str, *arguments, **options):
        """Begins a run; the returned function waits for it."""
        if not self._workers:
            self._start()
        for _, pipe in self._workers[:size]:
            pipe.send((size, "rank_checks", function, arguments, options))

        def finish(limit: float = HANG_LIMIT) -> list:
            deadline = time.monotonic() + limit
            answers = []
            for rank, (_, pipe) in enumerate(self._workers[:size]):
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    self._show_stacks()
                    self._stop(kill=True)
                    raise RankError(f"{function}: rank {rank} of {size} did not answer within {limit} s")
                answers.append(pipe.recv())
            failures = [f"rank {rank}:\n{text}" for rank, (fine, text) in enumerate(answers) if not fine]
            if failures:
                self._stop(kill=True)
                raise RankError(f"{function} on {size} ranks\n" + "\n".join(failures))
            return [value for _, value in answers]

        return finish

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks over a torch.distributed process group: of host tensors (gloo), or of a GPU's, in the order of
its stream (NCCL). What ranks have to say about failed calls goes through the group's store.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from marble._native import TransportError

TIME_LIMIT = timedelta(minutes=5)
POLL = 0.2  # seconds between two looks at the notices while a wait lasts
GRACE = 2.0  # seconds that what was sent before a notice gets to arrive
_TAGS = 1 << 20
_SIGN = 1 << 63

Message = tuple[int, int, int]  # peer, address, bytes


def devices_of(group: dist.ProcessGroup) -> dict[str, str]:
    """The back end that moves each type of device's tensors."""
    pairs = (part.split(":", 1) for part in dist.get_backend_config(group).split(","))
    return {device: backend for device, backend in pairs}


def control_device(group: dist.ProcessGroup) -> torch.device:
    """Where the group moves integers that the host reads: on the CPU if it can."""
    devices = devices_of(group)
    return torch.device("cpu") if "cpu" in devices else torch.device(next(iter(devices)))


def _store_of(group: dist.ProcessGroup) -> dist.Store:
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return distributed_c10d._get_process_group_store(group)  # PyTorch before 2.7


class Notices:
    """
    What the ranks of a group say through its store: which call a rank refused, and why a rank gave up. Calls are
    numbered alike everywhere, refused ones included. ``epoch`` tells a group's earlier life from this one.
    """

    def __init__(self, group: dist.ProcessGroup, epoch: int) -> None:
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)
        self._store = dist.PrefixStore(f"marble/{epoch}", _store_of(group))
        self._calls = 0
        self._gathered = 0
        self._refused: set[int] = set()
        self._is_settled = True

    def begin_call(self) -> None:
        """Counts a call, which this rank carries out or refuses."""
        self._calls += 1

    def refuse(self, reason: str) -> None:
        """Tells ranks that wait in this call, or will in a later one, that this rank took no part in it."""
        self._refused.add(self._calls)
        self._is_settled = False
        self._say(f"refused/{self._calls}/{self._rank}", "")
        self._say("refused", f"{self._calls} rank {self._rank} refused: {reason}")

    def give_up(self, reason: str) -> None:
        """Tells ranks that wait in any call; the first failure counts."""
        if self._hear("failed") is None:
            self._say("failed", f"rank {self._rank} failed: {reason}")

    def read(self) -> str | None:
        """What another rank said that ends the present call."""
        failure = self._hear("failed")
        if failure is not None and not failure.startswith(f"rank {self._rank} "):
            return failure
        call, _, reason = (self._hear("refused") or "0 ").partition(" ")
        return reason if 0 < int(call) <= self._calls and int(call) not in self._refused else None

    def settle(self, time_limit: timedelta = TIME_LIMIT) -> None:
        """
        After a refusal: returns once all ranks refused that call, since the next one's messages must not be taken for
        its. Raises TransportError when they do not.
        """
        deadline = time.monotonic() + time_limit.total_seconds()
        keys = [f"refused/{max(self._refused, default=0)}/{rank}" for rank in range(self._size)]
        while not self._is_settled and not self._store.check(keys):
            failure = self._hear("failed")
            if failure is not None or time.monotonic() > deadline:
                told = failure or f"the other ranks did not within {time_limit.total_seconds():.0f} s"
                raise TransportError(f"rank {self._rank} refused a call alone: {told}")
            time.sleep(POLL / 10)
        self._is_settled = True

    def gather(self, text: str) -> list[str]:
        """Every rank's text. Collective, through the store."""
        self._gathered += 1
        keys = [f"gathered/{self._gathered}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], text)
        try:
            self._store.wait(keys, TIME_LIMIT)
        except RuntimeError as error:
            raise TransportError(f"rank {self._rank} failed to meet the other ranks: {error}") from error
        texts = [self._store.get(key).decode() for key in keys]
        # Whoever came here has read what was gathered before.
        self._store.delete_key(f"gathered/{self._gathered - 1}/{self._rank}")
        return texts

    def _say(self, key: str, text: str) -> None:
        with suppress(RuntimeError):  # a store that is gone has nobody to tell
            self._store.set(key, text)

    def _hear(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None


class _Waiter:
    """A thread that waits, because gloo's waits can be neither interrupted nor cut into slices."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], threading.Event, list[Exception]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="marble waiter", daemon=True).start()

    def start(self, job: Callable[[], None]) -> tuple[threading.Event, list[Exception]]:
        """Sets the event when the job is done, its exception in the list."""
        done, errors = threading.Event(), list[Exception]()
        self._jobs.put((job, done, errors))
        return done, errors

    def _serve(self) -> None:
        while True:
            job, done, errors = self._jobs.get()
            try:
                job()
            except RuntimeError as error:
                errors.append(error)
            done.set()


class HostPeers:
    """Moves messages with isend and irecv. Both sides of a pair count their messages alike, so tags pair them."""

    name = "host tensors"

    def __init__(self, group: dist.ProcessGroup, notices: Notices, time_limit: timedelta = TIME_LIMIT) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._notices = notices
        self._time_limit = time_limit
        self._waiter = _Waiter()
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._flying: dict[int, tuple[str, list[tuple[str, int, int, dist.Work, torch.Tensor]]]] = {}
        self._tickets = 0

    def begin(self, sends: list[Message], recvs: list[Message], label: str) -> int:
        """Starts an exchange; the named memory stays the caller's."""
        flying = []
        for peer, address, size in recvs:
            buffer = _host_memory(address, size)
            tag = self._received[peer] % _TAGS
            self._received[peer] += 1
            work = self._start(dist.irecv, buffer, peer, tag, label)
            flying.append(("receiving from", peer, size, work, buffer))
        for peer, address, size in sends:
            buffer = _host_memory(address, size)
            tag = self._sent[peer] % _TAGS
            self._sent[peer] += 1
            work = self._start(dist.isend, buffer, peer, tag, label)
            flying.append(("sending to", peer, 0, work, buffer))
        self._tickets += 1
        self._flying[self._tickets] = (label, flying)
        return self._tickets

    def wait(self, ticket: int) -> int:
        """Returns the received bytes once the exchange is complete on this rank."""
        label, flying = self._flying.pop(ticket)
        awaited = flying[0]

        def wait_for_all() -> None:
            nonlocal awaited
            for awaited in flying:
                awaited[3].wait(self._time_limit)

        self._await(wait_for_all, lambda: f"{label}: rank {self._rank} failed {awaited[0]} rank {awaited[1]}")
        return sum(size for _, _, size, _, _ in flying)

    def gather(self, value: int) -> list[int]:
        """The 64-bit value of each rank."""
        own = torch.tensor([value - _SIGN], dtype=torch.int64, device=control_device(self._group))
        every = [torch.empty_like(own) for _ in range(self._size)]
        work = dist.all_gather(every, own, group=self._group, async_op=True)
        self._await(
            lambda: work.wait(self._time_limit), lambda: f"rank {self._rank} failed to agree with the other ranks"
        )
        return [int(other) + _SIGN for other in every]

    def _await(self, job: Callable[[], Any], describe: Callable[[], str]) -> None:
        """Runs a wait, ended by what another rank says."""
        done, errors = self._waiter.start(job)
        while not done.wait(POLL):
            notice = self._notices.read()
            if notice is not None and not done.wait(GRACE):
                raise TransportError(f"{describe()}: {notice}")
        if errors:
            raise TransportError(f"{describe()}: {errors[0]}") from errors[0]

    def _start(
        self, call: Callable[..., dist.Work | None], buffer: torch.Tensor, peer: int, tag: int, label: str
    ) -> dist.Work:
        try:
            work = call(buffer, self._ranks[peer], group=self._group, tag=tag)
        except RuntimeError as error:
            raise TransportError(f"{label}: rank {self._rank} cannot reach rank {peer}: {error}") from error
        assert work is not None  # as it is outside of the group alone
        return work


class DevicePeers(HostPeers):
    """Moves a GPU's memory in the order of the current stream; the host waits for no GPU."""

    name = "GPU tensors"

    def __init__(self, group: dist.ProcessGroup, notices: Notices, time_limit: timedelta = TIME_LIMIT) -> None:
        super().__init__(group, notices, time_limit)
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._works: dict[int, tuple[str, int, list[dist.Work]]] = {}

    def begin(self, sends: list[Message], recvs: list[Message], label: str) -> int:
        """Starts an exchange; the named memory stays the caller's."""
        operations = [
            dist.P2POp(call, self._memory(address, size), self._ranks[peer], self._group)
            for call, messages in ((dist.irecv, recvs), (dist.isend, sends))
            for peer, address, size in messages
        ]
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise TransportError(f"{label}: rank {self._rank} cannot reach its peers: {error}") from error
        self._tickets += 1
        self._works[self._tickets] = (label, sum(size for _, _, size in recvs), works)
        return self._tickets

    def gather(self, value: int) -> list[int]:
        """The 64-bit value of each rank, through the store: no GPU need be idle for it."""
        return [int(text) for text in self._notices.gather(str(value))]

    def wait(self, ticket: int) -> int:
        """Makes the current stream wait for the exchange; returns the bytes that it receives."""
        label, received, works = self._works.pop(ticket)
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise TransportError(f"{label}: rank {self._rank} failed in its exchange: {error}") from error
        return received

    def _memory(self, address: int, size: int) -> torch.Tensor:
        return torch.as_tensor(_DeviceBytes(address, size), device=self._device)


def make_peers(group: dist.ProcessGroup, notices: Notices, device: torch.device) -> HostPeers:
    """What moves messages to and from a device; ValueError when the group cannot."""
    devices = devices_of(group)
    if device.type == "cuda" and devices.get("cuda") == "nccl":
        return DevicePeers(group, notices)
    if "cpu" not in devices:
        raise ValueError(f"group: its back ends {devices} should move tensors on {device.type}")
    return HostPeers(group, notices)


class _DeviceBytes:
    """Bytes on a GPU, in words that PyTorch reads without copying."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _host_memory(address: int, size: int) -> torch.Tensor:
    """A view of ``size`` bytes at ``address``."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

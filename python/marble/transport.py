# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks over any torch.distributed process group that moves host tensors (gloo)."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from datetime import timedelta

import torch
import torch.distributed as dist

from marble._native import TransportError

TIME_LIMIT = timedelta(minutes=5)
_TAGS = 1 << 20
_SIGN = 1 << 63

Message = tuple[int, int, int]  # peer, address, bytes


class GroupPeers:
    """Moves messages with isend and irecv. Both sides of a pair count their messages alike, so tags pair them."""

    def __init__(self, group: dist.ProcessGroup, time_limit: timedelta = TIME_LIMIT) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._time_limit = time_limit
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._flying: dict[int, tuple[str, list[tuple[str, int, int, dist.Work, torch.Tensor]]]] = {}
        self._tickets = 0

    def begin(self, sends: list[Message], recvs: list[Message], label: str) -> int:
        """Starts an exchange; the named memory stays the caller's."""
        flying = []
        for peer, address, size in recvs:
            buffer = _memory(address, size)
            tag = self._received[peer] % _TAGS
            self._received[peer] += 1
            work = self._start(dist.irecv, buffer, peer, tag, label)
            flying.append(("receiving from", peer, size, work, buffer))
        for peer, address, size in sends:
            buffer = _memory(address, size)
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
        received = 0
        for what, peer, size, work, _ in flying:
            try:
                work.wait(self._time_limit)
            except RuntimeError as error:
                raise TransportError(f"{label}: rank {self._rank} failed {what} rank {peer}: {error}") from error
            received += size
        return received

    def gather(self, value: int) -> list[int]:
        """The 64-bit value of each rank."""
        own = torch.tensor([value - _SIGN], dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(self._size)]
        try:
            dist.all_gather(every, own, group=self._group, async_op=True).wait(self._time_limit)
        except RuntimeError as error:
            raise TransportError(f"rank {self._rank} failed to agree with the other ranks: {error}") from error
        return [int(other) + _SIGN for other in every]

    def _start(self, call, buffer: torch.Tensor, peer: int, tag: int, label: str) -> dist.Work:  # noqa: ANN001
        try:
            return call(buffer, self._ranks[peer], group=self._group, tag=tag)
        except RuntimeError as error:
            raise TransportError(f"{label}: rank {self._rank} cannot reach rank {peer}: {error}") from error


def _memory(address: int, size: int) -> torch.Tensor:
    """A view of ``size`` bytes at ``address``."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

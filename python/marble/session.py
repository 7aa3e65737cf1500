# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What one process keeps for one group on one device: a backend, a transport, and the plans bound to them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist

from marble import _native
from marble.backend import make_backend
from marble.groups import SOLO, choice_of, group_of, notices_of, peers_of, refuse_call, session_of
from marble.own_transport import make_own_transport
from marble.transport import DevicePeers

PLANS_KEPT = 2  # workspaces of each kind of layer: the current plan's, and those of the one before it
CHECKSUM_BYTES = 8  # that end a serialised plan


class Session:
    """
    Binds rank plans at their first use and keeps the last few. Every rank of a group makes the same calls in the same
    order, so all ranks bind and forget together.
    """

    def __init__(self, group: str, device: torch.device, stream: int) -> None:
        self.group = None if group == SOLO else group_of(group)
        self.device = device
        self._name = group
        self._choice = choice_of(group)
        self._notices = None if group == SOLO else notices_of(group)
        self._backend = make_backend(device, stream)
        self._has_own_transport = False
        self._transport = self._make_transport(stream)
        self._bound: dict[object, OrderedDict[object, _native.Attention]] = {}
        self._indices: OrderedDict[object, torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()
        self._call_lock = threading.Lock()

    def _make_transport(self, stream: int) -> _native.Transport:
        if self.group is None or self._notices is None:
            return _native.callback_transport("none", 0, 1, None)
        if self.device.type == "cuda" and self._choice != "group":
            transport, problem = make_own_transport(self.group, self._notices, self.device, stream)
            if transport is not None:
                self._has_own_transport = True
                return transport
            if self._choice == "own":
                raise _native.TransportError(f"transport: 'own' is not to be had: {problem}")
        peers = peers_of(self._name, self.device)
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        transport = _native.callback_transport(f"{peers.name} over group {self._name}", rank, size, peers)
        if self.device.type != "cpu" and not isinstance(peers, DevicePeers):
            transport.use_memory_of(self._backend)
        return transport

    @contextmanager
    def call(self) -> Iterator[None]:
        """Numbers a call and tells the other ranks why it failed here. One at a time: calls share workspaces."""
        with self._call_lock:
            if self._notices is None:
                yield
                return
            self._notices.begin_call()
            try:
                self._notices.settle()
                yield
            except _native.TransportError as error:
                self._raise_explained(error)
            except Exception as error:
                refuse_call(self._name, str(error), is_counted=True)
                raise

    @property
    def has_own_transport(self) -> bool:
        """Whether marble's own transport between GPUs moves the messages."""
        return self._has_own_transport

    def check(self) -> None:
        """Raises TransportError when the transport has failed."""
        try:
            self._transport.check()
        except _native.TransportError as error:
            self._raise_explained(error)

    def _raise_explained(self, error: _native.TransportError) -> NoReturn:
        """Raises the error with what another rank said, which hears of this rank's failure in turn."""
        if self._notices is not None:
            told = self._notices.read()
            self._notices.give_up(str(error))
            if told is not None and told not in str(error):
                raise _native.TransportError(f"{error}; {told}") from error
        raise error

    def fail(self, reason: str) -> None:
        """Ends the waits of the other ranks, and this transport."""
        self._transport.fail(reason)

    def describe(self) -> str:
        """How messages travel, in words."""
        return f"{self.device}: {self._transport.describe()}"

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return self._transport.num_ranks

    def bound(
        self, rank_plan: torch.Tensor, dtype: str, softmax_scale: float, softcap: float, deterministic: bool
    ) -> _native.Attention:
        """The rank plan bound to this session; collective over the group at its first use."""
        data = rank_plan.numpy()
        digest, layer, checksum = _native.rank_plan_key(data)
        options = (dtype, softmax_scale, softcap, deterministic)
        with self._lock:
            plans = self._bound.setdefault((layer, *options), OrderedDict())
            key = (digest, checksum)
            if key not in plans:
                while len(plans) >= PLANS_KEPT:
                    plans.popitem(last=False)
                plans[key] = _native.Attention(data, *options, self._backend, self._transport)
            plans.move_to_end(key)
            return plans[key]

    def index_of_tokens(self, plan_data: torch.Tensor, device: torch.device) -> torch.Tensor:
        """int64 [tokens] on ``device``: rank * rows + row of each token of the pack, from a serialised plan."""
        key = (plan_data[-CHECKSUM_BYTES:].numpy().tobytes(), device)
        with self._lock:
            if key not in self._indices:
                native = _native.Plan.from_bytes(plan_data.numpy())
                self._indices[key] = torch.from_numpy(token_index(native, self.num_ranks)).to(device)
                while len(self._indices) > PLANS_KEPT:
                    self._indices.popitem(last=False)
            self._indices.move_to_end(key)
            return self._indices[key]


@contextmanager
def collective_call(group: str, x: torch.Tensor) -> Iterator[Session]:
    """The session of a group for a call on ``x``'s device and current stream."""
    with torch.cuda.device_of(x):
        session = session_of(group, x.device)
        with session.call():
            yield session


def token_index(plan: _native.Plan, num_ranks: int) -> np.ndarray:
    """int64 [tokens]: rank * rows + row of each token of the pack."""
    parts = [plan.positions(rank) for rank in range(num_ranks)]
    index = np.empty(sum(len(part) for part in parts), dtype=np.int64)
    for rank, part in enumerate(parts):
        index[part] = np.arange(rank * plan.rows, rank * plan.rows + len(part), dtype=np.int64)
    return index

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What one process keeps for one group on one device: a backend, a transport, and the plans bound to them."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import torch
import torch.distributed as dist

from marble import _native
from marble.groups import SOLO, group_of, peers_of

PLANS_KEPT = 2  # workspaces of each kind of layer: the current plan's, and those of the one before it
CHECKSUM_BYTES = 8  # that end a serialised plan
ALIGNMENT = 256  # of workspace


class Session:
    """
    Binds rank plans at their first use and keeps the last few. Every rank of a group makes the same calls in the same
    order, so all ranks bind and forget together.
    """

    def __init__(self, group: str, device: torch.device, stream: int) -> None:
        self.group = None if group == SOLO else group_of(group)
        self.device = device
        self._workspace = Workspace(device)
        self._backend = make_backend(device, stream, self._workspace)
        if self.group is None:
            self._transport = _native.callback_transport("solo", 0, 1, None)
        else:
            self._transport = _native.callback_transport(
                f"torch.distributed group {group}",
                dist.get_rank(self.group),
                dist.get_world_size(self.group),
                peers_of(group),
            )
        if device.type != "cpu":
            self._transport.use_memory_of(self._backend)
        self._bound: dict[object, OrderedDict[object, _native.Attention]] = {}
        self._indices: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return self._transport.num_ranks

    def bound(self, rank_plan: torch.Tensor, dtype: str, softmax_scale: float, softcap: float) -> _native.Attention:
        """The rank plan bound to this session; collective over the group at its first use."""
        data = rank_plan.numpy()
        digest, layer, checksum = _native.rank_plan_key(data)
        with self._lock:
            plans = self._bound.setdefault((layer, dtype, softmax_scale, softcap), OrderedDict())
            key = (digest, checksum)
            if key not in plans:
                while len(plans) >= PLANS_KEPT:
                    plans.popitem(last=False)
                plans[key] = _native.Attention(data, dtype, softmax_scale, softcap, self._backend, self._transport)
            plans.move_to_end(key)
            return plans[key]

    def index_of_tokens(self, plan_data: torch.Tensor) -> torch.Tensor:
        """int64 [tokens]: rank * rows + row of each token of the pack, from a serialised plan."""
        key = plan_data[-CHECKSUM_BYTES:].numpy().tobytes()
        with self._lock:
            if key not in self._indices:
                native = _native.Plan.from_bytes(plan_data.numpy())
                self._indices[key] = torch.from_numpy(token_index(native, self.num_ranks))
                while len(self._indices) > PLANS_KEPT:
                    self._indices.popitem(last=False)
            self._indices.move_to_end(key)
            return self._indices[key]


def token_index(plan: _native.Plan, num_ranks: int) -> np.ndarray:
    """int64 [tokens]: rank * rows + row of each token of the pack."""
    parts = [plan.positions(rank) for rank in range(num_ranks)]
    index = np.empty(sum(len(part) for part in parts), dtype=np.int64)
    for rank, part in enumerate(parts):
        index[part] = np.arange(rank * plan.rows, rank * plan.rows + len(part), dtype=np.int64)
    return index


class Workspace:
    """Lends memory of PyTorch's allocator, on the stream that is current when it is taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lent: dict[int, torch.Tensor] = {}

    def allocate(self, size: int) -> int:
        """The address of ``size`` bytes, aligned to ALIGNMENT."""
        block = torch.empty(max(size, 1) + ALIGNMENT, dtype=torch.uint8, device=self._device)
        address = -(-block.data_ptr() // ALIGNMENT) * ALIGNMENT
        self._lent[address] = block
        return address

    def free(self, address: int) -> None:
        """Takes back what ``allocate`` gave."""
        del self._lent[address]

    def lent_bytes(self) -> int:
        """What is lent at present."""
        return sum(block.numel() for block in self._lent.values())


def make_backend(device: torch.device, stream: int, workspace: Workspace) -> _native.Backend:
    """The backend of a device, on a stream of it; ValueError where there is none."""
    if device.type == "cpu":
        return _native.cpu_backend(torch.get_num_threads(), workspace)
    if device.type == "cuda" and _native.cuda_available():
        return _native.cuda_backend(device.index or 0, stream, workspace)
    known = "cpu or cuda" if _native.cuda_available() else "cpu; this build of marble has no other backend"
    raise ValueError(f"device: {device} should be {known}")

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The mesh of ranks that share a sequence."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from marble.groups import TRANSPORTS, register_group, sessions_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DEFAULT_RANKS_PER_NODE = 8
UNKNOWN = -1  # a rank that is yet to be found out


@dataclass(frozen=True)
class Mesh:
    """
    ``ring`` x ``ulysses`` ranks; rank = ring_rank * ulysses + ulysses_rank, so a Ulysses group is consecutive ranks.

    ``rank`` and ``group`` say which of them this process is and through which process group it reaches the others. Left
    out, a mesh of more than one rank takes them from torch.distributed when that is initialised and its world has
    ``ring * ulysses`` ranks; else the mesh only plans (as rank 0). Plain data: a loader's worker needs no process
    group.

    ``transport``: how messages travel between GPUs. "own": marble's transport, copy engines where all ranks see each
    other's memory, else NCCL; TransportError where it cannot be made. "group": the process group's own sends and
    receives. "auto": the first of them that all ranks can use. Between CPUs it is always the group's.
    """

    ring: int = 1
    ulysses: int = 1
    ranks_per_node: int = DEFAULT_RANKS_PER_NODE
    rank: int = UNKNOWN
    group: str = ""
    transport: str = "auto"

    def __post_init__(self) -> None:
        for name in ("ring", "ulysses", "ranks_per_node"):
            value = getattr(self, name)
            if not isinstance(value, int):
                raise TypeError(f"{name}: {value!r} should be an integer")
            if value < 1:
                raise ValueError(f"{name}: {value} should be at least 1")
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport: {self.transport!r} should be one of {', '.join(TRANSPORTS)}")
        if self.rank == UNKNOWN:
            world = self.size > 1 and not self.group and dist.is_available() and dist.is_initialized()
            if world and dist.get_world_size() == self.size:
                object.__setattr__(self, "group", register_group(_world(), self.transport))
                object.__setattr__(self, "rank", dist.get_rank())
            else:
                object.__setattr__(self, "rank", 0)
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank: {self.rank} should be in 0..{self.size - 1}")

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.ring * self.ulysses

    def check(self) -> None:
        """
        Raises TransportError when a transport between this mesh's ranks has failed.

        Between GPUs a failed wait is the stream's: its results count only once the stream has been synchronised (as
        ``loss.item()`` does) and this call has returned. Every later call on the mesh raises too.
        """
        for session in sessions_of(self.group):
            session.check()

    @classmethod
    def from_group(
        cls,
        group: dist.ProcessGroup | None = None,
        *,
        ulysses: int = 1,
        ranks_per_node: int = DEFAULT_RANKS_PER_NODE,
        transport: str = "auto",
    ) -> Mesh:
        """
        All ranks of a process group (None: the default one), in its order.

        Raises ValueError unless ``ulysses`` divides its size.
        """
        group = _world() if group is None else group
        size = dist.get_world_size(group)
        return cls(
            ring=_ring_of(size, ulysses),
            ulysses=ulysses,
            ranks_per_node=ranks_per_node,
            rank=dist.get_rank(group),
            group=register_group(group, transport) if size > 1 else "",
            transport=transport,
        )

    @classmethod
    def from_device_mesh(
        cls,
        device_mesh: DeviceMesh,
        *,
        ring: str | None = None,
        ulysses: str | int = 1,
        ranks_per_node: int = DEFAULT_RANKS_PER_NODE,
        transport: str = "auto",
    ) -> Mesh:
        """
        The dimension ``ring`` of a DeviceMesh (None: its only one), and ``ulysses`` another, or a degree inside it.

        With two dimensions, ``ring`` must come before ``ulysses`` and be its neighbour. Raises ValueError else.
        """
        names = device_mesh.mesh_dim_names or ()
        if ring is None and device_mesh.ndim != 1:
            raise ValueError(f"ring: should name one of the mesh's {device_mesh.ndim} dimensions {names}")
        for name in (ring, ulysses):
            if isinstance(name, str) and name not in names:
                raise ValueError(f"{name!r} should be one of the mesh's dimensions {names}")
        if isinstance(ulysses, int):
            group, degree = device_mesh.get_group(ring), ulysses
        else:
            if ring is None or names.index(ulysses) != names.index(ring) + 1:
                raise ValueError(f"ulysses: {ulysses!r} should be the dimension after {ring!r} in {names}")
            both = device_mesh[(ring, ulysses)]
            group, degree = both._flatten().get_group(), both.size(1)
        return cls.from_group(group, ulysses=degree, ranks_per_node=ranks_per_node, transport=transport)

    @classmethod
    def from_env(cls, *, ulysses: int = 1, transport: str = "auto") -> Mesh:
        """
        All ranks that torchrun started, from WORLD_SIZE, RANK and LOCAL_WORLD_SIZE (absent: one rank).

        More than one rank need an initialised process group before attention, not before planning.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(min(size, DEFAULT_RANKS_PER_NODE))))
        if size > 1 and dist.is_available() and dist.is_initialized():
            return cls.from_group(ulysses=ulysses, ranks_per_node=local, transport=transport)
        rank = int(os.environ.get("RANK", "0"))
        return cls(ring=_ring_of(size, ulysses), ulysses=ulysses, ranks_per_node=local, rank=rank)


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    if group is None:
        raise ValueError("group: there is no default process group; call torch.distributed.init_process_group first")
    return group


def _ring_of(size: int, ulysses: int) -> int:
    if not isinstance(ulysses, int) or ulysses < 1 or size % ulysses != 0:
        raise ValueError(f"ulysses: {ulysses!r} should divide the {size} ranks")
    return size // ulysses

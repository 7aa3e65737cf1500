# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Plans: where each token lives, and what each rank does in each kind of layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch._dynamo  # here rather than at the first plan: it takes a second

from marble import _native, explain, sharding
from marble.layout import Layout
from marble.mesh import Mesh
from marble.model import Model, Window, to_window

PAD = -1


class Piece(NamedTuple):
    """Consecutive tokens of the pack that one rank stores in consecutive rows."""

    position: int
    row: int
    length: int


@dataclass(eq=False)  # not frozen: PyTorch 2.6 would compile again when any field of it changed
class Plan:
    """
    One rank's plan: plain numbers and host tensors, so it travels from loader workers as shared memory.

    ``rows``: of this rank's tensors, pads included; depends only on tokens, mesh and block, so shapes do not change
    with the layout. ``positions``: int64 [rows], the pack position of each row, -1 in pads, which sit at the end; the
    only part that :meth:`to` moves. ``rank_plans``: one uint8 tensor per kind of layer, the work and transfers that
    attention carries out. ``data``: the whole plan, serialised (uint8). ``digest``: equal on ranks that hold the same
    plan.
    """

    tokens: int
    rows: int
    model: Model
    mesh: Mesh
    digest: int
    layout_digest: int
    positions: torch.Tensor
    rank_plans: tuple[torch.Tensor, ...]
    data: torch.Tensor

    def __post_init__(self) -> None:
        if torch.utils.data.get_worker_info() is None:
            # Sizes of these change with the layout: compiled code must not be specialised to them.
            for tensor in (*self.rank_plans, self.data):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)

    def __getstate__(self) -> dict[str, Any]:
        # One tensor travels from a loader's worker faster than many: each costs an exchange with the worker.
        parts = [self.positions.cpu().view(torch.uint8), *self.rank_plans, self.data]
        state = {key: value for key, value in self.__dict__.items() if not isinstance(value, (torch.Tensor, tuple))}
        return {**state, "parts": torch.cat(parts), "sizes": [part.numel() for part in parts]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        positions, *rank_plans, data = (part.clone() for part in state.pop("parts").split(state.pop("sizes")))
        self.__dict__.update(state, positions=positions.view(torch.int64), rank_plans=tuple(rank_plans), data=data)
        self.__post_init__()

    def __repr__(self) -> str:
        return f"Plan({self.tokens} tokens, rank {self.mesh.rank} of {self.mesh.size}, {self.rows} rows)"

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> Plan:
        """The plan with ``positions`` on a device, so that :meth:`shard` does not move them at every call."""
        return replace(self, positions=self.positions.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Plan:
        """The plan with ``positions`` in pinned memory, as DataLoader(pin_memory=True) asks for."""
        return replace(self, positions=self.positions.pin_memory())

    @property
    def valid_rows(self) -> int:
        """Rows that hold tokens."""
        return int((self.positions != PAD).sum())

    @property
    def native(self) -> _native.Plan:
        """The planner's own form, read from ``data``."""
        return _native.Plan.from_bytes(self.data.numpy())

    @property
    def layout(self) -> Layout:
        """The layout that this plan was made from."""
        return Layout._wrap(self.native.layout)

    def layer_of(self, window: int | Window | None) -> int:
        """
        Index of the kind of layer with this window; ValueError names those that the plan has.

        An integer also finds a :class:`Window` of that size when only one kind has it.
        """
        wanted = to_window(window)
        windows = self.model.windows
        if wanted in windows:
            return windows.index(wanted)
        sizes = [other.size for other in windows]
        if not isinstance(window, Window) and sizes.count(wanted.size) == 1:
            return sizes.index(wanted.size)
        known = ", ".join(str(key) for key in self.model.layers)
        raise ValueError(f"window: {window} is no layer kind of this plan's model, which has {known}")

    def check_layout(self, layout: Layout) -> None:
        """Raises ValueError unless this plan was made for ``layout``."""
        if layout.digest != self.layout_digest:
            raise ValueError(f"plan: made for another layout ({self.tokens} tokens), not for {layout}")

    def shard(self, x: torch.Tensor, *, fill: float = 0, dim: int = 0, grad: str = "partial") -> torch.Tensor:
        """This rank's rows of ``x``, see :func:`marble.sharding.shard`."""
        return sharding.shard(self, x, fill=fill, dim=dim, grad=grad)

    def unshard(self, x: torch.Tensor, *, dim: int = 0, grad: str = "own") -> torch.Tensor:
        """All tokens in the given order, see :func:`marble.sharding.unshard`."""
        return sharding.unshard(self, x, dim=dim, grad=grad)

    def redistribute(self, features: torch.Tensor, positions: torch.Tensor, *, fill: float = 0) -> torch.Tensor:
        """Rows from features computed on any rank, see :func:`marble.sharding.redistribute`."""
        return sharding.redistribute(self, features, positions, fill=fill)

    def pieces(self, rank: int | None = None) -> list[Piece]:
        """What a rank (default: this one) stores, ascending in row: a loader fetches only these tokens."""
        positions = self.native.positions(self.mesh.rank if rank is None else rank)
        return list(_pieces(positions))

    def rope_positions(self) -> torch.Tensor:
        """Index of each row's token within its sample, int64 [rows], 0 in pads."""
        inside = torch.from_numpy(self.layout.positions_in_sample()).to(self.positions.device)
        return inside[self.positions.clamp(min=0)] * (self.positions != PAD)

    def explain(self) -> str:
        """The plan in words: placement, balance, what each kind of layer exchanges, work of each step."""
        return explain.explain(self)


def _pieces(positions: np.ndarray) -> Iterator[Piece]:
    if len(positions) == 0:
        return
    starts = np.concatenate([[0], np.flatnonzero(np.diff(positions) != 1) + 1])
    ends = np.append(starts[1:], len(positions))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield Piece(int(positions[start]), start, end - start)


def plan(
    layout: Layout,
    *,
    model: Model,
    mesh: Mesh | None = None,
    rank: int | None = None,
    placement: str | None = None,
    strategy: str | None = None,
    canonical: str | None = None,
    block: int = 128,
    threads: int = 2,
) -> Plan:
    """
    Plans one rank's part. Pure, local and deterministic: no communication, the same plan on every rank.

    ``mesh`` defaults to one rank, ``rank`` to the mesh's own. ``placement`` (contiguous, zigzag, striped, ptrr, ...),
    ``strategy`` (ring, alltoall, allgather) and ``canonical`` (sequence, stack) are the planner's choice when None;
    ``block`` is the number of rows of a tile. Raises ValueError naming what is impossible, TypeError on wrong types.
    """
    for name, value, expected in (("layout", layout, Layout), ("model", model, Model), ("mesh", mesh, Mesh)):
        if not isinstance(value, expected) and not (name == "mesh" and value is None):
            raise TypeError(f"{name}: {type(value).__name__} should be a marble.{expected.__name__}")
    mesh = Mesh() if mesh is None else mesh
    if rank is not None:
        mesh = replace(mesh, rank=rank)
    native = _native.make_plan(
        layout._native,
        model.to_native(),
        mesh.ring,
        mesh.ulysses,
        mesh.ranks_per_node,
        canonical=canonical,
        placement=placement,
        strategy=strategy,
        block=block,
        threads=threads,
    )
    own = native.positions(mesh.rank)
    positions = torch.full((native.rows,), PAD, dtype=torch.int64)
    positions[: len(own)] = torch.from_numpy(own)
    return Plan(
        tokens=layout.num_tokens,
        rows=native.rows,
        model=model,
        mesh=mesh,
        digest=native.digest,
        layout_digest=layout.digest,
        positions=positions,
        rank_plans=tuple(
            torch.from_numpy(native.rank_plan(mesh.rank, layer, threads)) for layer in range(len(model.layers))
        ),
        data=torch.from_numpy(native.to_bytes()),
    )

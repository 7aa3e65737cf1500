# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Plans: where each token lives, and what each rank does in each kind of layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch._dynamo  # here rather than at the first plan: it takes a second

from marble import _native, explain, sharding
from marble.layout import Layout
from marble.mesh import Mesh
from marble.model import Model, Window, to_window

PAD = -1
LEAST_KEPT = 256  # bytes of a layer


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
    attention carries out. ``kept``: one empty tensor per kind of layer, of shape [bytes that one layer keeps for
    backward in bf16 or fp16, in fp32, 0]; numbers in a shape may change without compiling again. ``data``: the whole
    plan, serialised (uint8). ``digest``: equal on ranks that hold the same plan.
    """

    tokens: int
    rows: int
    model: Model
    mesh: Mesh
    digest: int
    layout_digest: int
    positions: torch.Tensor
    rank_plans: tuple[torch.Tensor, ...]
    kept: tuple[torch.Tensor, ...]
    data: torch.Tensor

    def __post_init__(self) -> None:
        if torch.utils.data.get_worker_info() is None:
            # Sizes of these change with the layout: compiled code must not be specialised to them.
            for tensor in (*self.rank_plans, self.data):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            for tensor in self.kept:
                torch._dynamo.maybe_mark_dynamic(tensor, (0, 1))

    def __getstate__(self) -> dict[str, Any]:
        # One tensor travels from a loader's worker faster than many: each costs an exchange with the worker.
        parts = [self.positions.cpu().view(torch.uint8), *self.rank_plans, self.data]
        state = {key: value for key, value in self.__dict__.items() if not isinstance(value, (torch.Tensor, tuple))}
        kept = [tensor.shape for tensor in self.kept]
        return {**state, "parts": torch.cat(parts), "sizes": [part.numel() for part in parts], "kept": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        positions, *rank_plans, data = (part.clone() for part in state.pop("parts").split(state.pop("sizes")))
        kept = tuple(torch.empty(shape, dtype=torch.uint8) for shape in state.pop("kept"))
        self.__dict__.update(state, rank_plans=tuple(rank_plans), kept=kept, data=data)
        self.positions = positions.view(torch.int64)
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


def _check_types(expected: type | tuple[type, ...], **arguments: Any) -> None:
    kind = expected[0] if isinstance(expected, tuple) else expected
    name = kind.__name__ if kind.__module__ == "builtins" else f"marble.{kind.__name__}"
    for argument, value in arguments.items():
        if not isinstance(value, expected):
            raise TypeError(f"{argument}: {type(value).__name__} should be a {name}")


def _sizes_kept(rank_plan: np.ndarray, keep: str) -> torch.Tensor:
    sizes = [0, 0]
    if keep != "nothing":  # compiled code takes 0 for a constant: so some bytes, even where nothing is fetched
        sizes = [max(LEAST_KEPT, _native.saved_bytes(rank_plan, dtype)) for dtype in ("bf16", "fp32")]
    return torch.empty((*sizes, 0), dtype=torch.uint8)


def plan(
    layout: Layout,
    *,
    model: Model,
    mesh: Mesh | None = None,
    rank: int | None = None,
    placement: str | None = None,
    strategy: str | None = None,
    canonical: str | None = None,
    keep: str = "nothing",
    block: int = 128,
    threads: int = 2,
) -> Plan:
    """
    Plans one rank's part. Pure, local and deterministic: no communication, the same plan on every rank.

    ``mesh`` defaults to one rank, ``rank`` to the mesh's own. ``placement`` (contiguous, zigzag, striped, ptrr, ...),
    ``strategy`` (ring, alltoall, allgather) and ``canonical`` (sequence, stack) are the planner's choice when None;
    ``keep``: what forward leaves for backward, which exchanges the rest again: ``nothing`` but the caller's tensors,
    the heads that Ulysses ``scattered``, or with them every ``fetched`` key; more memory, fewer bytes between ranks.
    ``block`` is the number of rows of a tile. Raises ValueError naming what is impossible, TypeError on wrong types.
    """
    _check_types(Layout, layout=layout)
    _check_types(Model, model=model)
    _check_types((Mesh, NoneType), mesh=mesh)
    _check_types((int, NoneType), rank=rank)
    _check_types((str, NoneType), placement=placement, strategy=strategy, canonical=canonical)
    _check_types(str, keep=keep)
    _check_types(int, block=block, threads=threads)
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
        keep=keep,
        block=block,
        threads=threads,
    )
    rank_plans = [native.rank_plan(mesh.rank, layer, threads) for layer in range(len(model.layers))]
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
        rank_plans=tuple(torch.from_numpy(rank_plan) for rank_plan in rank_plans),
        kept=tuple(_sizes_kept(rank_plan, keep) for rank_plan in rank_plans),
        data=torch.from_numpy(native.to_bytes()),
    )

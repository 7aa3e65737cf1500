# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""
From the pack's tokens to a rank's rows and back: differentiable and out of place.

Two conventions of the backward pass exist, and both are right somewhere; each function takes its own by name.

* ``shard``: every rank holds the whole tensor and keeps its rows. With ``grad="partial"`` the gradient by the whole
  tensor is this rank's part, zero at the tokens of other ranks: right when the gradients of whatever computed the
  tensor (an embedding) are summed over ranks later, as DDP and FSDP do. With ``grad="summed"`` every rank gets the
  whole gradient: right when nobody sums later.
* ``unshard``: every rank gets the whole tensor. With ``grad="own"`` a rank takes its rows of the incoming gradient:
  right when every rank computes the same from the result (a loss over all tokens, on every rank). With
  ``grad="summed"`` incoming gradients are summed over ranks first: right when ranks compute different parts.

Sums across ranks are made in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marble import ops

if TYPE_CHECKING:
    from marble.plan import Plan


def _check(name: str, x: Tensor, dim: int, expected: int, what: str) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__} should be a torch.Tensor")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim: {dim} should be an axis of {name}, which has shape {list(x.shape)}")
    if x.shape[dim] != expected:
        raise ValueError(f"{name}: shape {list(x.shape)} should have {expected} {what} on axis {dim}")


def _check_choice(grad: str, choices: tuple[str, str]) -> None:
    if grad not in choices:
        raise ValueError(f"grad: {grad!r} should be {choices[0]!r} or {choices[1]!r}")


def check_group(plan: Plan) -> str:
    """The group that the plan's ranks meet in; ValueError when this process has none."""
    if plan.mesh.size > 1 and not plan.mesh.group:
        raise ValueError(
            f"plan: its mesh has {plan.mesh.size} ranks but no process group; make the mesh after "
            "torch.distributed.init_process_group with a world of that size, or from a group or DeviceMesh"
        )
    return plan.mesh.group


def shard(plan: Plan, x: Tensor, *, fill: float = 0, dim: int = 0, grad: str = "partial") -> Tensor:
    """
    This rank's rows of ``x``: [..., tokens, ...] to [..., rows, ...], pads holding ``fill``.

    Any dtype (labels: shift them first, then fill with -100). ``dim`` is the token axis. ``grad``: see above.
    Raises ValueError when axis ``dim`` does not have the plan's number of tokens.
    """
    _check("x", x, dim, plan.tokens, "tokens")
    _check_choice(grad, ("partial", "summed"))
    if grad == "summed" and plan.mesh.size > 1:
        x = ops.copy_to_ranks(x, check_group(plan))
    rows = ops.take_rows(x.movedim(dim, 0), plan.positions.to(x.device), fill)
    return rows.movedim(0, dim)


def unshard(plan: Plan, x: Tensor, *, dim: int = 0, grad: str = "own") -> Tensor:
    """
    All tokens in the given order: [..., rows, ...] to [..., tokens, ...], the same on every rank. Collective.

    Pads are dropped. ``grad``: see above. Raises ValueError when axis ``dim`` does not have the plan's number of rows.
    """
    _check("x", x, dim, plan.rows, "rows")
    _check_choice(grad, ("own", "summed"))
    tokens = ops.gather_tokens(
        x.movedim(dim, 0), plan.positions, plan.data, plan.tokens, check_group(plan), grad == "summed"
    )
    return tokens.movedim(0, dim)


def redistribute(plan: Plan, features: Tensor, positions: Tensor, *, fill: float = 0) -> Tensor:
    """
    This rank's rows [rows, ...] of features that were computed on any rank, as a vision tower's are. Collective.

    ``features``: [n, ...] of this rank, n differing between ranks and possibly 0; ``positions``: int64 [n], the pack
    position of each. Rows that nobody has features for hold ``fill``; features of one token add up. Differentiable:
    each feature's gradient comes back to the rank that computed it.
    Raises ValueError on shapes that differ or positions outside the pack.
    """
    if not isinstance(features, Tensor) or not isinstance(positions, Tensor):
        raise TypeError("features and positions: should be torch.Tensors")
    if positions.dtype != torch.int64 or positions.dim() != 1 or features.dim() < 1:
        raise ValueError(f"positions: {positions.dtype} of shape {list(positions.shape)} should be int64 of shape [n]")
    if features.shape[0] != positions.shape[0]:
        raise ValueError(f"features: {features.shape[0]} rows should match the {positions.shape[0]} positions")
    if positions.numel() and (int(positions.min()) < 0 or int(positions.max()) >= plan.tokens):
        raise ValueError(f"positions: {int(positions.min())}..{int(positions.max())} should be in 0..{plan.tokens - 1}")
    return ops.exchange_rows(features, positions, plan.data, plan.rows, float(fill), check_group(plan))

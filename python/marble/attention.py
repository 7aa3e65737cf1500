# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over a plan's rows."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from marble import ops
from marble.groups import refuse_call
from marble.model import Window
from marble.plan import Plan
from marble.sharding import check_group

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _check_tensor(name: str, x: Tensor, rows: int, heads: int, head_dim: int, like: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__} should be a torch.Tensor")
    if x.dim() != 3 or x.shape[0] != rows or x.shape[1] != heads or x.shape[2] != head_dim:
        raise ValueError(f"{name}: shape {list(x.shape)} should be [rows, heads, head_dim] = {[rows, heads, head_dim]}")
    if x.dtype != like.dtype:
        raise TypeError(f"{name}: {x.dtype} should be q's {like.dtype}")
    if x.device != like.device:
        raise ValueError(f"{name}: on {x.device}, should be on q's {like.device}")


def _check(q: Tensor, k: Tensor, v: Tensor, plan: Plan, softmax_scale: float, softcap: float) -> None:
    if not isinstance(q, Tensor):
        raise TypeError(f"q: {type(q).__name__} should be a torch.Tensor")
    if q.dtype not in DTYPES:
        raise TypeError(f"q: {q.dtype} should be float32, bfloat16 or float16")
    model = plan.model
    _check_tensor("q", q, plan.rows, model.heads, model.head_dim, q)
    _check_tensor("k", k, plan.rows, model.kv_heads, model.head_dim, q)
    _check_tensor("v", v, plan.rows, model.kv_heads, model.head_dim, q)
    if not softmax_scale > 0:
        raise ValueError(f"softmax_scale: {softmax_scale} should be positive")
    if not softcap >= 0:
        raise ValueError(f"softcap: {softcap} should be 0 (none) or positive")


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    window: int | Window | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: Literal[False] = False,
    deterministic: bool | None = None,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    window: int | Window | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: Literal[True],
    deterministic: bool | None = None,
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan,
    *,
    window: int | Window | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    deterministic: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """
    Exactly the attention that one device would compute over the whole pack; this rank's rows of it. Collective.

    ``q``: [rows, heads, head_dim]; ``k``, ``v``: [rows, kv_heads, head_dim], as :meth:`Plan.shard` makes them, all
    fp32, bf16 or fp16, any strides. ``window``: of this layer, one of the plan's model. ``softmax_scale``: default
    1 / sqrt(head_dim). ``softcap`` > 0: scores become softcap * tanh(score / softcap).
    ``deterministic``: gradients repeat to the bit from run to run, which may be slower on GPUs; outputs always do.
    Default: torch.are_deterministic_algorithms_enabled().
    Returns [rows, heads, head_dim] in q's dtype; with ``return_lse`` also the log-sum-exp of each row's scores, fp32
    [rows, heads]. Both are differentiable. A row without a legal key gives output 0 and LSE -inf; so do pads.

    Raises ValueError or TypeError naming argument, value and expectation, before any communication; ranks that wait for
    one which refused raise TransportError.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: {type(plan).__name__} should be a marble.Plan")
    if softmax_scale is None:
        softmax_scale = plan.model.head_dim**-0.5
    group = check_group(plan)
    try:
        _check(q, k, v, plan, softmax_scale, softcap)
        rank_plan = plan.rank_plans[plan.layer_of(window)]
    except (TypeError, ValueError) as refusal:
        refuse_call(group, str(refusal))
        raise
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    options = (float(softmax_scale), float(softcap), deterministic)
    out, lse = ops.attention_forward(q, k, v, rank_plan, group, *options)
    return (out, lse) if return_lse else out

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over a plan's rows."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from marble import ops
from marble.groups import refuse_call
from marble.model import Window
from marble.plan import Plan
from marble.sharding import check_group

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _check_tensor(name: str, x: Tensor, rows: int, heads: int, head_dim: int, like: Tensor) -> None:
    if x.layout != torch.strided:
        raise TypeError(f"{name}: {x.layout} should be torch.strided")
    if x.dim() != 3 or x.shape[0] != rows or x.shape[1] != heads or x.shape[2] != head_dim:
        raise ValueError(f"{name}: shape {list(x.shape)} should be [rows, heads, head_dim] = {[rows, heads, head_dim]}")
    if x.dtype != like.dtype:
        raise TypeError(f"{name}: {x.dtype} should be q's {like.dtype}")
    if x.device != like.device:
        raise ValueError(f"{name}: on {x.device}, should be on q's {like.device}")


def _check(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> None:
    if q.dtype not in DTYPES:
        raise TypeError(f"q: {q.dtype} should be float32, bfloat16 or float16")
    model = plan.model
    _check_tensor("q", q, plan.rows, model.heads, model.head_dim, q)
    _check_tensor("k", k, plan.rows, model.kv_heads, model.head_dim, q)
    _check_tensor("v", v, plan.rows, model.kv_heads, model.head_dim, q)
    if not torch.compiler.is_compiling():
        _check_mode(q, k, v)


def _check_mode(*tensors: Tensor) -> None:
    """Refuses what PyTorch would let pass, with wrong results."""
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError("marble.attention: gradients in forward mode are not computed")
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        raise NotImplementedError("marble.attention: a CUDA graph cannot hold it; it would replay this plan's work")


def _check_options(softmax_scale: Any, softcap: Any) -> tuple[float, float]:
    for name, value in (("softmax_scale", softmax_scale), ("softcap", softcap)):
        if isinstance(value, str) or not hasattr(value, "__float__"):
            raise TypeError(f"{name}: {value!r} should be a number")
    if not softmax_scale > 0:
        raise ValueError(f"softmax_scale: {softmax_scale} should be positive")
    if not softcap >= 0:
        raise ValueError(f"softcap: {softcap} should be 0 (none) or positive")
    return float(softmax_scale), float(softcap)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that torch.autocast asks for on q's device, as for PyTorch's own attention."""
    for name, x in zip("qkv", tensors, strict=True):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {type(x).__name__} should be a torch.Tensor")
    device = tensors[0].device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) if x.dtype in DTYPES else x for x in tensors)


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
    return_lse: bool,
    deterministic: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]: ...


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
    fp32, bf16 or fp16, any strides; under torch.autocast they are cast to its type. ``window``: of this layer, one of
    the plan's model. ``softmax_scale``: default 1 / sqrt(head_dim). ``softcap`` > 0: scores become
    softcap * tanh(score / softcap).
    ``deterministic``: gradients repeat to the bit from run to run, which may be slower on GPUs; outputs always do.
    Default: torch.are_deterministic_algorithms_enabled().
    Returns [rows, heads, head_dim] in q's dtype; with ``return_lse`` also the log-sum-exp of each row's scores, fp32
    [rows, heads]. Both are differentiable. A row without a legal key gives output 0 and LSE -inf; so do pads.

    Raises ValueError or TypeError naming argument, value and expectation, before any communication, and
    NotImplementedError for gradients of gradients or in forward mode and in a CUDA graph's capture; ranks that wait for
    one which refused raise TransportError.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: {type(plan).__name__} should be a marble.Plan")
    if softmax_scale is None:
        softmax_scale = plan.model.head_dim**-0.5
    group = check_group(plan)
    try:
        q, k, v = _autocast(q, k, v)
        _check(q, k, v, plan)
        options = _check_options(softmax_scale, softcap)
        layer = plan.layer_of(window)
    except (TypeError, ValueError, NotImplementedError) as refusal:
        refuse_call(group, str(refusal))
        raise
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    work = (plan.rank_plans[layer], plan.kept[layer], group)
    out, lse, _ = ops.attention_forward(q, k, v, *work, *options, deterministic)
    return (out, lse) if return_lse else out

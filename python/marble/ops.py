# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""
The operators that PyTorch sees: attention forward and backward, and movements of rows between ranks.

Each is one opaque operator with a fake and, where it makes sense, an autograd registration, so that torch.compile keeps
it whole, checkpointing can save or recompute it by name (torch.ops.marble.attention_forward), and no collective is
reordered inside it. Groups travel by name, plans as uint8 host tensors.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from marble.groups import SOLO, group_of, session_of
from marble.routing import Route
from marble.session import collective_call

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_NO_TENSOR = (0, 0, 0, 0, 0, 0)
# A CUDA graph would replay one plan's work. Without the tag PyTorch leaves out whatever reads tensors of the host.
_UNCAPTURED: dict[str, Any] = {"tags": [torch.Tag.cudagraph_unsafe]} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name


def _dense_rows(x: Tensor) -> Tensor:
    """The tensor itself unless its last axis has gaps."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _view(x: Tensor) -> tuple[int, int, int, int, int, int]:
    rows, heads, dim = x.shape
    return x.data_ptr(), rows, heads, dim, x.stride(0), x.stride(1)


def _scalar_view(x: Tensor) -> tuple[int, int, int, int, int, int]:
    rows, heads = x.shape
    return x.data_ptr(), rows, heads, 1, x.stride(0), x.stride(1)


def _forward_results(q: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    return out, lse, q.new_empty(kept.shape[q.dtype == torch.float32], dtype=torch.uint8)


@torch.library.custom_op("marble::attention_forward", mutates_args=(), **_UNCAPTURED)
def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank_plan: Tensor,
    kept: Tensor,
    group: str,
    softmax_scale: float,
    softcap: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """
    Output [rows, heads, head_dim] in q's dtype, LSE [rows, heads] in fp32, and the bytes that the plan keeps for
    backward, whose number is in the shape of ``kept`` (:attr:`marble.Plan.kept`).
    """
    q, k, v = _dense_rows(q), _dense_rows(k), _dense_rows(v)
    out, lse, saved = _forward_results(q, kept)
    with collective_call(group, q) as session:
        bound = session.bound(rank_plan, _DTYPES[q.dtype], softmax_scale, softcap, deterministic)
        bound.forward(_view(q), _view(k), _view(v), _view(out), _scalar_view(lse), saved.data_ptr())
    return out, lse, saved


@attention_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rank_plan: Tensor,
    kept: Tensor,
    group: str,
    softmax_scale: float,
    softcap: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _forward_results(q, kept)


@torch.library.custom_op("marble::attention_backward", mutates_args=(), **_UNCAPTURED)
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
    dout: Tensor | None,
    dlse: Tensor | None,
    rank_plan: Tensor,
    group: str,
    softmax_scale: float,
    softcap: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v, in their dtype, from those by output and LSE (None: zero)."""
    dout = torch.zeros_like(out) if dout is None else dout
    q, k, v, out, dout = (_dense_rows(x) for x in (q, k, v, out, dout))
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    shift = None
    if dlse is not None:
        # The gradient by a score is P * (dP - delta + dlse). Rows without a key have LSE -inf and no gradient.
        shift = torch.where(lse.isneginf(), 0.0, -dlse).contiguous()
    with collective_call(group, q) as session:
        bound = session.bound(rank_plan, _DTYPES[q.dtype], softmax_scale, softcap, deterministic)
        bound.backward(
            _view(q),
            _view(k),
            _view(v),
            _view(out),
            _scalar_view(lse),
            _view(dout),
            _NO_TENSOR if shift is None or shift.numel() == 0 else _scalar_view(shift),
            _view(dq),
            _view(dk),
            _view(dv),
            saved.data_ptr(),
        )
    return dq, dk, dv


@attention_backward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
    dout: Tensor | None,
    dlse: Tensor | None,
    rank_plan: Tensor,
    group: str,
    softmax_scale: float,
    softcap: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv


def _attention_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, rank_plan, _, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output, rank_plan)


def _attention_grads(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    *tensors, rank_plan = ctx.saved_tensors
    grads = attention_backward(*tensors, dout, dlse, rank_plan, *ctx.options)
    return (*grads, *[None] * (len(ctx.options) + 2))


attention_forward.register_autograd(_attention_grads, setup_context=_attention_setup)


def _refuse_second_gradients(*_: Any) -> None:
    raise NotImplementedError("marble.attention: gradients of its gradients are not computed")


attention_backward.register_autograd(_refuse_second_gradients)


@torch.library.custom_op("marble::sum_over_ranks", mutates_args=(), **_UNCAPTURED)
def sum_over_ranks(x: Tensor, group: str) -> Tensor:
    """The sum of all ranks' tensors, summed in fp32 (fp64 and integers: as they are) and cast once. Not
    differentiable.
    """
    low = x.is_floating_point() and x.dtype != torch.float64
    total = x.to(torch.float32 if low else x.dtype, copy=True).contiguous()
    if group != SOLO:
        dist.all_reduce(total, group=group_of(group))
    return total.to(x.dtype) if low and x.dtype != torch.float32 else total


@sum_over_ranks.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("marble::copy_to_ranks", mutates_args=(), **_UNCAPTURED)
def copy_to_ranks(x: Tensor, group: str) -> Tensor:
    """The tensor itself, which all ranks hold; its gradient is the sum of all ranks' gradients."""
    return x.clone(memory_format=torch.contiguous_format)


@copy_to_ranks.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _copy_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.group = inputs


def _copy_grads(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return sum_over_ranks(grad, ctx.group), None


copy_to_ranks.register_autograd(_copy_grads, setup_context=_copy_setup)


@torch.library.custom_op("marble::gather_tokens", mutates_args=(), **_UNCAPTURED)
def gather_tokens(x: Tensor, positions: Tensor, plan_data: Tensor, tokens: int, group: str, summed: bool) -> Tensor:
    """
    All ranks' rows [rows, ...] as tokens [tokens, ...] in the given order.

    Its gradient by x: this rank's own rows of the incoming gradient, or (``summed``) of its sum over ranks.
    """
    session = session_of(group, x.device)
    rows = x.contiguous()
    if session.group is not None:
        every = x.new_empty((session.num_ranks * x.shape[0], *x.shape[1:]))
        _all_gather(every, rows, group=session.group)
        rows = every
    return rows.index_select(0, session.index_of_tokens(plan_data, x.device))


@gather_tokens.register_fake
def _(x: Tensor, positions: Tensor, plan_data: Tensor, tokens: int, group: str, summed: bool) -> Tensor:
    return x.new_empty((tokens, *x.shape[1:]))


def take_rows(x: Tensor, positions: Tensor, fill: float) -> Tensor:
    """Row i is x[positions[i]], or ``fill`` where that is negative."""
    pads = (positions < 0).view(-1, *[1] * (x.dim() - 1))
    if x.shape[0] == 0:
        return x.new_full((positions.shape[0], *x.shape[1:]), fill)
    return x.index_select(0, positions.clamp(min=0)).masked_fill(pads, fill)


def _gather_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, positions, _, _, ctx.group, ctx.summed = inputs
    ctx.save_for_backward(positions)


def _gather_grads(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (positions,) = ctx.saved_tensors
    if ctx.summed:
        grad = sum_over_ranks(grad, ctx.group)
    return take_rows(grad, positions.to(grad.device), 0), None, None, None, None, None


gather_tokens.register_autograd(_gather_grads, setup_context=_gather_setup)


@torch.library.custom_op("marble::exchange_rows", mutates_args=(), **_UNCAPTURED)
def exchange_rows(features: Tensor, positions: Tensor, plan_data: Tensor, rows: int, fill: float, group: str) -> Tensor:
    """This rank's rows from all ranks' features [n, ...] of the tokens ``positions`` [n]; features of one token add
    up.
    """
    session = session_of(group, features.device)
    route = Route(session, positions, plan_data, rows)
    out = features.new_full((rows, *features.shape[1:]), fill)
    out[route.rows] = 0
    arrived = route.send(features)
    return out.index_add_(0, route.rows.to(out.device), arrived)


@exchange_rows.register_fake
def _(features: Tensor, positions: Tensor, plan_data: Tensor, rows: int, fill: float, group: str) -> Tensor:
    return features.new_empty((rows, *features.shape[1:]))


@torch.library.custom_op("marble::exchange_rows_backward", mutates_args=(), **_UNCAPTURED)
def exchange_rows_backward(grad: Tensor, positions: Tensor, plan_data: Tensor, group: str) -> Tensor:
    """Each feature's gradient, from the rank that holds its token's row."""
    session = session_of(group, grad.device)
    route = Route(session, positions, plan_data, grad.shape[0])
    return route.send_back(grad.index_select(0, route.rows.to(grad.device)))


@exchange_rows_backward.register_fake
def _(grad: Tensor, positions: Tensor, plan_data: Tensor, group: str) -> Tensor:
    return grad.new_empty((positions.shape[0], *grad.shape[1:]))


def _exchange_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, positions, plan_data, _, _, ctx.group = inputs
    ctx.save_for_backward(positions, plan_data)


def _exchange_grads(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    positions, plan_data = ctx.saved_tensors
    return exchange_rows_backward(grad, positions, plan_data, ctx.group), None, None, None, None, None


exchange_rows.register_autograd(_exchange_grads, setup_context=_exchange_setup)

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""A loss over the tokens of all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from marble import ops
from marble.groups import register_group
from marble.plan import Plan
from marble.sharding import check_group


def token_mean(
    losses: Tensor,
    valid: Tensor,
    plan: Plan,
    *,
    group: dist.ProcessGroup | None = None,
    gradients: str = "summed",
) -> Tensor:
    """
    The mean of the losses of all ranks' valid tokens: a scalar of equal value on every rank. Collective.

    ``losses``: [rows], one per token; ``valid``: bool [rows], False in pads and unlabelled tokens, whose losses may be
    NaN. Its gradient reaches this rank's own tokens, as 1 / (valid tokens of all ranks) each, so that *summing* the
    ranks' parameter gradients gives the gradient of the mean. Give ``gradients="averaged"`` when the trainer averages
    them (DDP and FSDP do by default): it multiplies by the number of ranks. ``group``: ranks to average over when they
    are more than the plan's (data parallel ones included). A pack without valid tokens gives 0.
    """
    for name, x in (("losses", losses), ("valid", valid)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {type(x).__name__} should be a torch.Tensor")
    if losses.shape != valid.shape:
        raise ValueError(f"losses: shape {list(losses.shape)} should be valid's {list(valid.shape)}")
    if valid.dtype != torch.bool:
        raise TypeError(f"valid: {valid.dtype} should be bool")
    if gradients not in ("summed", "averaged"):
        raise ValueError(f"gradients: {gradients!r} should be 'summed' or 'averaged'")
    name = check_group(plan) if group is None else register_group(group)
    size = plan.mesh.size if group is None else dist.get_world_size(group)
    own = torch.where(valid, losses.float(), 0.0).sum()
    totals = ops.sum_over_ranks(torch.stack([own.detach().double(), valid.sum().double()]), name)
    count = totals[1].clamp(min=1.0)
    part = own / count.float() * (size if gradients == "averaged" else 1)
    return part + ((totals[0] / count).float() - part).detach()

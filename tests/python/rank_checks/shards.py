# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that are dealt, gathered, moved and averaged."""

import marble
import torch
import torch.distributed as dist

from .meshes import mesh_of


def shard_and_unshard_return(group, samples, ulysses, device="cpu"):
    """A round trip of several shapes and dtypes, with S == H, and both gradient conventions."""
    layout = marble.Layout(samples)
    model = marble.Model(heads=4, kv_heads=2, head_dim=8)
    plan = marble.plan(layout, model=model, mesh=mesh_of(group, ulysses=ulysses), block=16)
    tokens = layout.num_tokens
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for shape, dim in (
        ((tokens,), 0),
        ((tokens, tokens), 0),
        ((tokens, tokens), 1),
        ((2, tokens, 3), 1),
        ((3, 2, tokens), -1),
    ):
        for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
            x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(device, dtype)
            local = plan.shard(x, dim=dim, fill=1)
            assert local.shape[dim] == plan.rows and local.dtype == dtype
            assert torch.equal(plan.unshard(local, dim=dim), x)
    labels = plan.shard(torch.arange(tokens, device=device), fill=-100)
    assert torch.equal(labels.cpu(), torch.where(plan.positions < 0, -100, plan.positions))

    x = torch.randn(tokens, 3, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    weight = torch.randn(tokens, 3, generator=torch.Generator().manual_seed(1)).to(device)
    own = torch.zeros(tokens, 1, device=device)
    own[plan.positions[: plan.valid_rows]] = 1
    hidden = x * 2  # not a leaf
    (partial,) = torch.autograd.grad((plan.shard(hidden) * plan.shard(weight)).sum(), x)
    torch.testing.assert_close(partial, 2 * weight * own)
    (summed,) = torch.autograd.grad((plan.shard(x * 2, grad="summed") * plan.shard(weight)).sum(), x)
    torch.testing.assert_close(summed, 2 * weight)

    local = plan.shard(x).detach().requires_grad_()
    (grad,) = torch.autograd.grad((plan.unshard(local) * weight).sum(), local)
    torch.testing.assert_close(grad, plan.shard(weight))
    (grad,) = torch.autograd.grad((plan.unshard(local, grad="summed") * weight).sum() * (rank + 1), local)
    torch.testing.assert_close(grad, plan.shard(weight) * (size * (size + 1) / 2))


def features_reach_their_rows(group, samples, device="cpu"):
    """Each rank computes some tokens' features; they arrive in the rows of their owners, and gradients come back."""
    layout = marble.Layout(samples)
    model = marble.Model(heads=2, kv_heads=1, head_dim=8)
    plan = marble.plan(layout, model=model, mesh=mesh_of(group), block=16)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    tokens = layout.num_tokens
    everything = torch.randn(tokens, 5, generator=torch.Generator().manual_seed(0)).to(device)
    chosen = torch.randperm(tokens, generator=torch.Generator().manual_seed(1))[: tokens // 2]
    mine = chosen[chosen % size == rank] if rank else chosen[chosen % size == 0].flip(0)
    if size > 2 and rank == 1:
        mine = mine[:0]
    counts = [None] * size
    dist.all_gather_object(counts, mine.tolist(), group=group)
    given = torch.zeros(tokens, dtype=torch.bool, device=device)
    given[[position for part in counts for position in part]] = True
    features = everything[mine].requires_grad_()
    rows = plan.redistribute(features, mine.to(device), fill=7)
    expected = plan.shard(torch.where(given[:, None], everything, 7.0), fill=7)
    torch.testing.assert_close(rows, expected)
    weight = torch.randn(tokens, 5, generator=torch.Generator().manual_seed(2)).to(device)
    (grad,) = torch.autograd.grad((rows * plan.shard(weight)).sum(), features)
    torch.testing.assert_close(grad, weight[mine])


def mean_is_global(group, samples, device="cpu"):
    """The loss is the mean over all ranks' valid tokens, also when a rank has none and its losses are NaN."""
    layout = marble.Layout(samples)
    plan = marble.plan(layout, model=marble.Model(heads=1, kv_heads=1, head_dim=8), mesh=mesh_of(group), block=16)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own = plan.positions[: plan.valid_rows]
    for silent in (None, 0):
        valid = (torch.rand(layout.num_tokens, generator=torch.Generator().manual_seed(0)) < 0.6).to(device)
        owners = [None] * size
        dist.all_gather_object(owners, own.tolist(), group=group)
        if silent is not None:
            valid[owners[silent]] = False
        losses = torch.randn(layout.num_tokens, generator=torch.Generator().manual_seed(1)).to(device)
        local = plan.shard(losses, fill=torch.nan).masked_fill(~plan.shard(valid, fill=0), torch.nan).requires_grad_()
        for convention, factor in (("summed", 1), ("averaged", size)):
            mean = marble.token_mean(local, plan.shard(valid, fill=0), plan, gradients=convention)
            expected = losses[valid].mean() if valid.any() else torch.tensor(0.0, device=device)
            torch.testing.assert_close(mean, expected)
            (grad,) = torch.autograd.grad(mean, local)
            torch.testing.assert_close(grad, plan.shard(valid.float() / valid.sum().clamp(min=1)) * factor)
    del rank

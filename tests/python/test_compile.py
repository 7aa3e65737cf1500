# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""One operator to PyTorch: opcheck, torch.compile without breaks or recompiles, activation checkpointing."""

import pickle
from contextlib import nullcontext

import marble
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

MODEL = marble.Model(heads=4, kv_heads=2, head_dim=8, layers={None: 1, 16: 1})
PACKS = [
    [[("causal", 200)]],
    [[("causal", 50), ("full", 30)], [("noise", 60), ("causal", 60)]],
    [[("causal", 1)]] * 40 + [[("group", 40), ("causal", 80), ("group", 40)]],
    [[("full", 20)]] * 10,
]


def make_plan(pack):
    """As the trainer gets it from a loader's worker."""
    return pickle.loads(pickle.dumps(marble.plan(marble.Layout(pack), model=MODEL, block=16)))


class Layer(torch.nn.Module):
    """A pre-norm attention layer with a residual."""

    def __init__(self, window=None):
        super().__init__()
        self.window = window
        self.qkv = torch.nn.Linear(32, 64)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x, plan):
        q, k, v = self.qkv(x).split([32, 16, 16], dim=-1)
        heads = (t.unflatten(-1, (-1, 8)) for t in (q, k, v))
        return x + self.out(marble.attention(*heads, plan, window=self.window).flatten(-2))


def tensors(plan):
    torch.manual_seed(0)
    return [torch.randn(plan.rows, heads, 8, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.parametrize("layer", [0, 1])
def test_opcheck_of_attention(layer):
    plan = make_plan(PACKS[1])
    torch.library.opcheck(
        torch.ops.marble.attention_forward.default,
        (*tensors(plan), plan.rank_plans[layer], plan.kept[layer], "", 0.3, 0.0, False),
    )


def test_opcheck_of_movements():
    plan = make_plan(PACKS[1])
    x = torch.randn(plan.rows, 3, requires_grad=True)
    where = torch.tensor([5, 3, 199])
    ops = torch.ops.marble
    torch.library.opcheck(ops.gather_tokens.default, (x, plan.positions, plan.data, plan.tokens, "", True))
    torch.library.opcheck(ops.exchange_rows.default, (x[:3], where, plan.data, plan.rows, 0.0, ""))
    torch.library.opcheck(ops.copy_to_ranks.default, (x, ""))
    torch.library.opcheck(ops.sum_over_ranks.default, (x.detach(), ""))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_new_layouts_neither_break_nor_recompile(backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([Layer(), Layer(16)])
    counter = CompileCounterWithBackend(backend)

    def step(x, plan):
        x = plan.shard(x)
        for layer in layers:
            x = layer(x, plan)
        return plan.unshard(x).square().mean()

    compiled = torch.compile(step, backend=counter, fullgraph=True)
    for seed, pack in enumerate(PACKS):
        plan = make_plan(pack)
        x = torch.randn(200, 32, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        results = []
        for function in (compiled, step):
            layers.zero_grad()
            loss = function(x, plan)
            (grad,) = torch.autograd.grad(loss, x)
            results.append((loss, grad))
        torch.testing.assert_close(*results)
    assert counter.frame_count == 1


def test_compile_with_lse_and_another_length():
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(q, k, v, plan):
        out, lse = marble.attention(q, k, v, plan, window=16, return_lse=True)
        return out.sum() + lse[:100].sum()

    for pack in (PACKS[0], [[("causal", 150), ("full", 70)]]):
        plan = make_plan(pack)
        inputs = tensors(plan)
        out, lse = marble.attention(*inputs, plan, window=16, return_lse=True)
        expected = torch.autograd.grad(out.sum() + lse[:100].sum(), inputs)
        for grad, exact in zip(torch.autograd.grad(step(*inputs, plan), inputs), expected, strict=True):
            torch.testing.assert_close(grad, exact)


class _Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts forward attention."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.marble.attention_forward.default
        return func(*args, **(kwargs or {}))


def _save_attention(_, op, *args, **kwargs):
    saved = op is torch.ops.marble.attention_forward.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_checkpoint_recomputes_or_keeps_attention(selective, compiled):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = Layer()
    plan = make_plan(PACKS[1])
    x = torch.randn(plan.rows, 32, requires_grad=True)
    (expected,) = torch.autograd.grad(layer(x, plan).square().mean(), x)
    options = {}
    if selective:
        options["context_fn"] = lambda: create_selective_checkpoint_contexts(_save_attention)

    def run(x):
        return checkpoint(layer, x, plan, use_reentrant=False, **options)

    function = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
    with nullcontext() if compiled else _Calls() as calls:  # compiled code runs under no dispatch mode
        (grad,) = torch.autograd.grad(function(x).square().mean(), x)
    torch.testing.assert_close(grad, expected)
    if not compiled:
        assert calls.count == (1 if selective else 2)


def test_backward_needs_no_context_and_no_plan():
    plan = make_plan(PACKS[1])
    inputs = tensors(plan)
    loss = marble.attention(*inputs, plan).square().sum()
    expected = torch.autograd.grad(loss, inputs, retain_graph=True)
    for pack in PACKS:  # other plans push this one out of the cache
        other = make_plan(pack)
        marble.attention(*tensors(other), other)
    del plan
    for grad, exact in zip(torch.autograd.grad(loss, inputs), expected, strict=True):
        assert torch.equal(grad, exact)


def test_only_what_needs_a_gradient_gets_one():
    plan = make_plan(PACKS[1])
    q, k, v = tensors(plan)
    out = marble.attention(q.detach(), k, v.detach(), plan)
    (dk,) = torch.autograd.grad(out.sum(), k)
    (expected,) = torch.autograd.grad(marble.attention(q, k, v, plan).sum(), k)
    assert torch.equal(dk, expected)
    with torch.no_grad():
        assert not marble.attention(q, k, v, plan).requires_grad
    with torch.inference_mode():
        marble.attention(q, k, v, plan)


def test_autocast_and_swapped_backends_keep_parameters():
    assert not [name for name in dir(marble) if isinstance(getattr(marble, name), torch.nn.Module)]
    plan = make_plan(PACKS[1])
    layer = Layer()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(plan.rows, 32), plan).shape == (plan.rows, 32)


@pytest.mark.parametrize("keep", ["nothing", "scattered", "fetched"])
def test_ranks_compile_alike(pool, keep):
    pool.run(4, "compiled_layers_are_eager", PACKS, keep=keep)

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks against dense attention, compiled and on other streams."""

import marble
import torch
import torch.distributed as dist
from masks import dense_mask
from reference import dense_attention, relative_error, torch_attention

from .meshes import mesh_of

FP32_BOUND = 2e-5
LOW_PRECISION_RATIO = 2.0  # to the error of PyTorch's own attention on the same inputs


def _random(generator, tokens, heads, dim, dtype, gaps, device):
    """A leaf [tokens, heads, dim]; with gaps, a view of a larger tensor with other strides, at odd addresses."""
    if not gaps:
        return torch.randn(tokens, heads, dim, generator=generator).to(device, dtype).requires_grad_()
    wide = torch.randn(heads, tokens, dim + 3, generator=generator).to(device, dtype)
    return wide.transpose(0, 1)[..., 1 : dim + 1].requires_grad_()


def _bounds(q, k, v, w_out, mask, expected, exact_inputs, scale, softcap):
    """What output, dQ, dK and dV may be off by: in low precision, as PyTorch's attention on one device is."""
    if q.dtype == torch.float32:
        return [FP32_BOUND] * 4
    assert softcap == 0, "PyTorch's attention has no softcap"
    out = torch_attention(q, k, v, mask, scale)
    grads = torch.autograd.grad((out * w_out).sum(), (q, k, v))
    exact = (expected, *torch.autograd.grad((expected * w_out).sum(), exact_inputs, retain_graph=True))
    return [LOW_PRECISION_RATIO * relative_error(*pair) for pair in zip((out, *grads), exact, strict=True)]


def attention_is_dense(
    group,
    samples,
    *,
    heads=4,
    kv_heads=2,
    dim=16,
    ulysses=1,
    layers=None,
    block=16,
    dtype="float32",
    seed=0,
    gaps=False,
    softcap=0.0,
    device="cpu",
    **options,
):
    """Output, LSE and gradients of all ranks together against dense attention; returns the largest error over bound."""
    dtype = getattr(torch, dtype)
    layout = marble.Layout(samples)
    model = marble.Model(heads=heads, kv_heads=kv_heads, head_dim=dim, layers=layers or {None: 1})
    mesh = mesh_of(group, ulysses=ulysses)
    plan = marble.plan(layout, model=model, mesh=mesh, block=block, **options)
    generator = torch.Generator().manual_seed(seed)
    tokens = layout.num_tokens
    q = _random(generator, tokens, heads, dim, dtype, gaps, device)
    k, v = (_random(generator, tokens, kv_heads, dim, dtype, gaps, device) for _ in range(2))
    w_out = torch.randn(tokens, heads, dim, generator=generator).to(device, dtype)
    w_lse = torch.randn(tokens, heads, generator=generator).to(device)
    worst = 0.0
    for window in model.layers:
        kind = marble.model.to_window(window)
        mask = dense_mask(layout, kind.size, kind.clamp).to(device)
        exact_inputs = [x.detach().double().requires_grad_() for x in (q, k, v)]
        expected, expected_lse = dense_attention(*exact_inputs, mask, dim**-0.5, softcap)
        bounds = _bounds(q, k, v, w_out, mask, expected, exact_inputs, dim**-0.5, softcap)
        seen = mask.any(1)
        loss = (expected * w_out).sum() + (expected_lse * w_lse)[seen].sum()
        expected_grads = torch.autograd.grad(loss, exact_inputs)

        shards = [plan.shard(x, grad="summed") for x in (q, k, v)]
        out, lse = marble.attention(*shards, plan, window=window, softcap=softcap, return_lse=True)
        pads = plan.positions < 0
        assert (out[pads] == 0).all() and lse[pads].isneginf().all()
        assert out.dtype == dtype and lse.dtype == torch.float32
        whole, whole_lse = plan.unshard(out), plan.unshard(lse)
        assert whole.shape == expected.shape, (whole.shape, expected.shape)
        assert whole_lse.shape == expected_lse.shape, (whole_lse.shape, expected_lse.shape)
        assert torch.equal(whole_lse.isneginf(), expected_lse.isneginf())
        loss = (whole.float() * w_out).sum() + (whole_lse * w_lse)[seen].sum()
        grads = torch.autograd.grad(loss, (q, k, v))
        values = (whole, *grads, whole_lse[seen])
        exact = (expected, *expected_grads, expected_lse[seen])
        for name, value, wanted, bound in zip(
            ("out", "dq", "dk", "dv", "lse"), values, exact, (*bounds, FP32_BOUND), strict=True
        ):
            assert torch.isfinite(value).all(), name
            error = relative_error(value, wanted)
            assert error <= bound, f"{name}: relative error {error}, bound {bound}, on {layout} {layout.samples()}"
            worst = max(worst, error / bound if bound else 0.0)
    return worst


def bytes_received_backward(group, samples, **options):
    """What this rank receives in one backward pass on a ring of two Ulysses pairs."""
    from marble.groups import session_of

    model = marble.Model(heads=4, kv_heads=2, head_dim=16)
    mesh = mesh_of(group, ulysses=2)
    plan = marble.plan(marble.Layout(samples), model=model, mesh=mesh, block=16, strategy="ring", **options)
    inputs = [torch.randn(plan.rows, heads, 16, requires_grad=True) for heads in (4, 2, 2)]
    out = marble.attention(*inputs, plan)
    transport = session_of(mesh.group, torch.device("cpu"))._transport
    before = transport.bytes_received
    out.sum().backward()
    return transport.bytes_received - before


def two_groups_run_at_once(group):
    """Two halves of the world attend over packs of their own."""
    rank = dist.get_rank(group)
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    attention_is_dense(halves[rank // 2], [[("causal", 40 + 30 * (rank // 2))], [("full", 20)]])


def staged_messages_are_exact(group):
    """Attention over a transport that reads and writes the backend's memory, as it does on GPUs without NCCL."""
    from marble.groups import session_of

    own = dist.new_group(list(range(dist.get_world_size(group))))
    mesh = mesh_of(own, ulysses=2)
    session = session_of(mesh.group, torch.device("cpu"))
    session._transport.use_memory_of(session._backend)
    attention_is_dense(own, [[("causal", 90), ("full", 40)], [("causal", 61)]], ulysses=2)
    assert session._transport.bytes_received > 0
    marble.forget_group(mesh.group)


def gloo_moves_messages_of_gpus(group, samples, **options):
    """Attention between GPUs over a group that moves host tensors alone; the backend copies to and from them."""
    from marble.groups import session_of

    own = dist.new_group(list(range(dist.get_world_size(group))), backend="gloo")
    mesh = mesh_of(own)
    attention_is_dense(own, samples, **options)
    described = session_of(mesh.group, torch.device("cuda", torch.cuda.current_device())).describe()
    assert "host tensors" in described, described
    marble.forget_group(mesh.group)


def compiled_layers_are_eager(group, packs, device="cpu", ulysses=2, **options):
    """A compiled step over several layouts on all ranks: one graph, the eager results, checkpointed layers."""
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch.utils.checkpoint import checkpoint

    model = marble.Model(heads=4, kv_heads=2, head_dim=8)
    mesh = mesh_of(group, ulysses=ulysses)
    dtype, block = (torch.float32, 16) if device == "cpu" else (torch.bfloat16, 128)
    counter = CompileCounterWithBackend("aot_eager")

    def layer(x, plan):
        heads = x.unflatten(-1, (-1, 8))
        return x + marble.attention(heads[:, :4], heads[:, :2], heads[:, 2:], plan).flatten(1)

    def step(x, plan):
        rows = plan.shard(x, grad="summed")
        for _ in range(2):
            rows = checkpoint(layer, rows, plan, use_reentrant=False)
        return plan.unshard(rows).square().mean()

    compiled = torch.compile(step, backend=counter, fullgraph=True)
    for seed, pack in enumerate(packs):
        plan = marble.plan(marble.Layout(pack), model=model, mesh=mesh, block=block, **options)
        x = (
            torch.randn(plan.tokens, 32, generator=torch.Generator().manual_seed(seed))
            .to(device, dtype)
            .requires_grad_()
        )
        results = [(loss, *torch.autograd.grad(loss, x)) for loss in (compiled(x, plan), step(x, plan))]
        for value, expected in zip(*results, strict=True):
            assert relative_error(value, expected) < (1e-6 if dtype == torch.float32 else 1e-2)
    assert counter.frame_count == 1, counter.frame_count
    torch._dynamo.reset()


def streams_are_current_ones(group):
    """Attention runs on the current stream, after what that was asked for before, and leaves the current device."""
    layout = marble.Layout([[("causal", 5000)]])
    model = marble.Model(heads=4, kv_heads=2, head_dim=64)
    plan = marble.plan(layout, model=model, mesh=mesh_of(group))
    q, k, v = (torch.randn(plan.rows, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2))
    expected = marble.attention(q, k, v, plan)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        marble.attention(q, k, v, plan)  # binds the plan to this stream, which waits
        late = torch.full_like(q, torch.nan)
        torch.cuda._sleep(100_000_000)
        late.copy_(q)
        out = marble.attention(late, k, v, plan)
        assert not stream.query(), "the host waited for the GPU"
        result = out.float().sum()
    stream.synchronize()
    assert torch.isfinite(result) and torch.equal(out, expected)
    assert torch.cuda.current_device() == q.device.index

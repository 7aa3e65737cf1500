# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of the pool run. Every function gets its process group first."""

import os

import marble
import torch
import torch.distributed as dist
from masks import dense_mask
from reference import dense_attention, relative_error, torch_attention

FP32_BOUND = 2e-5
LOW_PRECISION_RATIO = 2.0  # to the error of PyTorch's own attention on the same inputs


def mesh_of(group, ulysses=1):
    """A mesh of all ranks of a group, with the transport that the pool is for."""
    return marble.Mesh.from_group(group, ulysses=ulysses, transport=os.environ.get("MARBLE_TEST_TRANSPORT", "auto"))


def _random(generator, tokens, heads, dim, dtype, gaps, device):
    """A leaf [tokens, heads, dim]; with gaps, a view of a larger tensor with other strides."""
    if not gaps:
        return torch.randn(tokens, heads, dim, generator=generator).to(device, dtype).requires_grad_()
    wide = torch.randn(heads, tokens, dim + 3, generator=generator).to(device, dtype)
    return wide.transpose(0, 1)[..., :dim].requires_grad_()


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


def refusals_come_before_communication(group):
    """Bad arguments raise on every rank; afterwards the group still works."""
    layout = marble.Layout([[("causal", 50)]])
    model = marble.Model(heads=4, kv_heads=2, head_dim=8)
    plan = marble.plan(layout, model=model, mesh=mesh_of(group), block=16)
    q, k = torch.randn(plan.rows + 1, 4, 8), torch.randn(plan.rows, 2, 8)
    try:
        marble.attention(q, k, k, plan)
    except ValueError as error:
        assert f"q: shape [{plan.rows + 1}, 4, 8] should be" in str(error), error
    else:
        raise AssertionError("a wrong local length was accepted")
    assert marble.attention(q[:-1], k, k, plan).shape == (plan.rows, 4, 8)


def a_lone_refusal_ends_the_others_waits(group, device="cpu"):
    """A bad argument on one rank: it raises what is wrong, and the others, waiting for it, why it does not come."""
    import time

    own = dist.new_group(list(range(dist.get_world_size(group))))  # which is of no use afterwards
    rank = dist.get_rank(own)
    layout = marble.Layout([[("causal", 500)]])
    model = marble.Model(heads=4, kv_heads=2, head_dim=8)
    dtype, block = (torch.float32, 16) if device == "cpu" else (torch.bfloat16, 128)
    plan = marble.plan(layout, model=model, mesh=mesh_of(own), block=block, strategy="ring")
    q, k = (torch.randn(plan.rows, heads, 8, device=device, dtype=dtype) for heads in (4, 2))

    def attend(q):
        marble.attention(q, k, k, plan)
        if device == "cuda":  # where it is the stream that waits
            torch.cuda.synchronize()
            plan.mesh.check()

    attend(q)
    begin = time.monotonic()
    errors = []
    for argument in (torch.cat([q, q[:1]]) if rank == 1 else q, q):
        try:
            attend(argument)
        except (ValueError, marble.TransportError) as error:
            errors.append((type(error).__name__, str(error)))
    assert time.monotonic() - begin < 30
    first, second = errors
    if rank == 1:
        rows = plan.rows
        assert first == (
            "ValueError",
            f"q: shape [{rows + 1}, 4, 8] should be [rows, heads, head_dim] = [{rows}, 4, 8]",
        )
        assert "rank 1 refused a call alone: rank" in second[1], errors
    else:
        assert "refused: q: shape" in first[1], errors
    assert second[0] == "TransportError", errors
    marble.forget_group(plan.mesh.group)


def different_plans_are_refused(group):
    """Ranks that bring plans of different layouts all raise, naming the ranks, and none hangs."""
    rank = dist.get_rank(group)
    layout = marble.Layout([[("causal", 64)]] if rank == 0 else [[("causal", 60), ("full", 4)]])
    model = marble.Model(heads=4, kv_heads=2, head_dim=8)
    plan = marble.plan(layout, model=model, mesh=mesh_of(group), block=16)
    q, k = torch.randn(plan.rows, 4, 8), torch.randn(plan.rows, 2, 8)
    try:
        marble.attention(q, k, k, plan)
    except ValueError as error:
        assert "ranks disagree on the plan digest: rank 0 has" in str(error), error
    else:
        raise AssertionError("different plans were accepted")


def _grad(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _run_dense(model, layout, inputs, weight):
    """Logits and parameter gradients of a transformers model with dense attention."""
    from hf_models import dense_masks

    logits = model(**inputs, attention_mask=dense_masks(model, layout), use_cache=False).logits
    (logits * weight).sum().backward()
    return logits.detach(), _take_grads(model)


def _take_grads(model):
    grads = {name: _grad(parameter).clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return grads


def _largest_errors(logits, grads, exact_logits, exact_grads):
    """Relative errors of logits and of each parameter's gradient; of gradients that are next to nothing, over more."""
    floor = 1e-4 * max(grad.norm() for grad in exact_grads.values())
    errors = {
        name: ((grads[name].float() - exact).norm() / max(exact.norm(), floor)).item()
        for name, exact in exact_grads.items()
    }
    return {"logits": relative_error(logits, exact_logits), **errors}


def transformers_model_is_dense(group, kind, *, copies=1, block=16, device="cpu", dtype="float32", **options):
    """
    Logits and parameter gradients of a transformers model over all ranks against the same model with dense attention in
    fp32. In low precision the bounds are what that model is off by when it runs in low precision itself: its logits,
    and its worst gradient (a norm's few weights are too few to compare one by one).
    """
    import copy

    from hf_models import build

    model, layout, inputs = build(kind, copies)
    dtype = getattr(torch, dtype)
    model.to(device, dtype)
    inputs = {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in inputs.items()}
    weight = torch.randn(
        1, layout.num_tokens, model.config.get_text_config().vocab_size, generator=torch.Generator().manual_seed(5)
    ).to(device, dtype)
    exact_inputs = {name: x.float() if x.is_floating_point() else x for name, x in inputs.items()}
    exact = _run_dense(copy.deepcopy(model).float(), layout, exact_inputs, weight.float())
    bounds = {"logits": 1e-4, **dict.fromkeys(exact[1], 1e-3)}
    if dtype != torch.float32:
        noise = _largest_errors(*_run_dense(model, layout, inputs, weight), *exact)
        of_logits = LOW_PRECISION_RATIO * noise.pop("logits")
        bounds = {"logits": of_logits, **dict.fromkeys(noise, LOW_PRECISION_RATIO * max(noise.values()))}
    state = {name: value.clone() for name, value in model.state_dict().items()}

    vision = {"vision_config": "eager"} if hasattr(model.config, "vision_config") else {}
    model.set_attn_implementation({"text_config": "marble", **vision} if vision else "marble")
    handle = marble.hf.shard_inputs(model)
    plan = marble.plan(
        layout,
        model=marble.hf.attention_model(model.config),
        mesh=mesh_of(group),
        block=block,
        **options,
    )
    logits = model(**inputs, marble_plan=plan).logits
    assert logits.shape[1] == plan.rows
    (logits * plan.shard(weight, dim=1)).sum().backward()
    whole = plan.unshard(logits.detach(), dim=1)
    grads = _take_grads(model)
    for grad in grads.values():
        dist.all_reduce(grad, group=group)
    errors = _largest_errors(whole, grads, *exact)
    worst = {name: (error, bounds[name]) for name, error in errors.items() if error > bounds[name]}
    assert not worst, worst
    handle.remove()
    assert state.keys() == model.state_dict().keys()
    return max(error / bounds[name] for name, error in errors.items())


def image_tokens_held(group, kind):
    """Pack positions of the image tokens that this rank holds under contiguous placement."""
    from hf_models import IMAGE, build

    model, layout, inputs = build(kind)
    plan = marble.plan(
        layout,
        model=marble.hf.attention_model(model.config),
        mesh=mesh_of(group),
        block=16,
        placement="contiguous",
        canonical="sequence",
    )
    visual = plan.shard(inputs["input_ids"] == IMAGE, dim=1)
    return plan.positions[visual[0]].tolist()


def train_example(group, **options):
    """The losses and gradient norms of examples/train_packed.py on this group."""
    import pathlib
    import sys

    examples = str(pathlib.Path(__file__).parents[2] / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    import train_packed

    settings = train_packed.Options(**{"tokens": 300, **options})
    return train_packed.train(settings, mesh_of(group, ulysses=settings.ulysses), group)


def a_silent_peer_is_named(group):
    """A rank that waits for a message that never comes gets a TransportError."""
    from datetime import timedelta

    from marble.transport import HostPeers, Notices

    own = dist.new_group([0, 1, 2])  # which is of no use afterwards
    if dist.get_rank(group) != 0:
        return
    peers = HostPeers(own, Notices(own, 0), timedelta(seconds=1))
    buffer = torch.zeros(16, dtype=torch.uint8)
    ticket = peers.begin([], [(2, buffer.data_ptr(), 16)], "layer 0 forward step 1 fetch")
    try:
        peers.wait(ticket)
    except marble.TransportError as error:
        assert "layer 0 forward step 1 fetch: rank 0 failed receiving from rank 2" in str(error), error
    else:
        raise AssertionError("nothing was awaited")


def meshes_agree(group):
    """One mesh, from a group, a flat device mesh and a device mesh of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "ulysses"))
    expected = mesh_of(group, ulysses=2)
    assert (expected.ring, expected.ulysses, expected.rank) == (2, 2, dist.get_rank(group))
    for mesh in (
        marble.Mesh.from_device_mesh(flat, ulysses=2),
        marble.Mesh.from_device_mesh(both, ring="ring", ulysses="ulysses"),
        marble.Mesh(ring=2, ulysses=2),
    ):
        assert (mesh.ring, mesh.ulysses, mesh.rank) == (2, 2, dist.get_rank(group)), mesh
        layout = marble.Layout([[("causal", 70)]])
        plan = marble.plan(layout, model=marble.Model(heads=2, kv_heads=1, head_dim=8), mesh=mesh, block=16)
        q, k = torch.ones(plan.rows, 2, 8), torch.ones(plan.rows, 1, 8)
        assert marble.attention(q, k, k, plan).shape == q.shape
    ring_only = marble.Mesh.from_device_mesh(both, ring="ring")
    assert (ring_only.ring, ring_only.rank) == (2, both.get_local_rank("ring"))
    for arguments, words in (({}, "should name one of the mesh's 2"), ({"ring": "x"}, "'x' should be one of")):
        try:
            marble.Mesh.from_device_mesh(both, **arguments)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{arguments} was accepted")


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


def compiled_layers_are_eager(group, packs, device="cpu", ulysses=2):
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
        plan = marble.plan(marble.Layout(pack), model=model, mesh=mesh, block=block)
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


def a_failed_transport_stays_failed(group):
    """After a failure every later call on the transport raises; a new one works."""
    from marble import _native

    class Broken:
        def begin(self, sends, recvs, label):
            raise marble.TransportError(f"{label}: no route")

        def gather(self, value):
            return [value, value]

    layout = marble.Layout([[("causal", 64)]])
    model = marble.Model(heads=2, kv_heads=1, head_dim=8)
    plan = marble.plan(layout, model=model, mesh=mesh_of(group), block=16, strategy="ring")
    session = marble.groups.session_of(plan.mesh.group, torch.device("cpu"))
    transport = _native.callback_transport("broken", dist.get_rank(group), 2, Broken())
    bound = _native.Attention(plan.rank_plans[0].numpy(), "fp32", 1.0, 0.0, False, session._backend, transport)
    q, k, out = torch.ones(plan.rows, 2, 8), torch.ones(plan.rows, 1, 8), torch.ones(plan.rows, 2, 8)
    views = [marble.ops._view(x) for x in (q, k, k, out)]
    for words in ("layer 0 forward step", "transport broken failed before; make a new one"):
        try:
            bound.forward(*views, marble.ops._scalar_view(torch.ones(plan.rows, 2)))
        except marble.TransportError as error:
            assert words in str(error), error
        else:
            raise AssertionError("nothing failed")
    assert marble.attention(q, k, k, plan).shape == q.shape


def texts_are_gathered_through_the_store(group):
    """Every rank's text, again and again, on every rank."""
    from marble.transport import Notices

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    notices = Notices(group, 1_000)
    for turn in range(5):
        assert notices.gather(f"{turn} of {rank}") == [f"{turn} of {other}" for other in range(size)]

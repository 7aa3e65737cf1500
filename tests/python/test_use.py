# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's users do with an operator and with values: autocast, hooks, threads, transforms, copies."""

import copy
import pickle
import threading

import marble
import pytest
import torch
from test_compile import MODEL, PACKS, Layer, make_plan, tensors
from torch.autograd import forward_ad

PLAN = make_plan(PACKS[1])


def test_autocast_casts_as_pytorchs_attention_does():
    q, k, v = tensors(PLAN)
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = marble.attention(q, k.bfloat16(), v, PLAN, return_lse=True)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    cast = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    expected = marble.attention(*cast, PLAN)
    assert torch.equal(out, expected)
    for grad, exact in zip(grads, torch.autograd.grad(expected.float().square().sum(), cast), strict=True):
        assert grad.dtype == torch.float32 and torch.equal(grad, exact.float())


def test_autocast_compiles():
    torch._dynamo.reset()
    layer = Layer()
    x = torch.randn(PLAN.rows, 32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x, PLAN)
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x, PLAN), expected)


def test_gradients_of_gradients_are_refused():
    inputs = tensors(PLAN)
    out = marble.attention(*inputs, PLAN)
    grads = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of its gradients are not computed"):
        grads[0].sum().backward()


def test_forward_mode_is_refused():
    q, k, v = (x.detach() for x in tensors(PLAN))
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="gradients in forward mode are not computed"),
    ):
        marble.attention(forward_ad.make_dual(q, q), k, v, PLAN)
    with pytest.raises(NotImplementedError, match="gradients in forward mode"):
        torch.func.jvp(lambda q: marble.attention(q, k, v, PLAN), (q,), (q,))


def test_threads_take_turns():
    """Calls that share a workspace, from threads that run beside each other, forward and backward."""
    inputs = [tensors(PLAN) for _ in range(4)]
    for i, values in enumerate(inputs):
        torch.nn.init.normal_(values[0], std=i + 1)

    def run(values):
        out = marble.attention(*values, PLAN)
        return [out, *torch.autograd.grad(out.square().sum(), values)]

    expected = [run(values) for values in inputs]
    wrong = []

    def repeat(i):
        for _ in range(20):
            wrong.extend(i for pair in zip(run(inputs[i]), expected[i], strict=True) if not torch.equal(*pair))

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_hooks_of_modules_and_tensors_run():
    layer, seen = Layer(), []
    layer.register_forward_hook(lambda *_: seen.append("forward"))
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    x = torch.randn(PLAN.rows, 32, requires_grad=True)
    x.register_hook(lambda grad: seen.append(grad.shape))
    layer(x, PLAN).sum().backward()
    assert seen == ["forward", "backward", x.shape]


@pytest.mark.parametrize("keep", ["nothing", "fetched"])
def test_saved_tensors_may_wait_elsewhere(keep):
    plan = marble.plan(marble.Layout(PACKS[1]), model=MODEL, block=16, keep=keep)
    inputs = tensors(plan)
    expected = torch.autograd.grad(marble.attention(*inputs, plan).square().sum(), inputs)
    with torch.autograd.graph.save_on_cpu():
        out = marble.attention(*inputs, plan)
    for grad, exact in zip(torch.autograd.grad(out.square().sum(), inputs), expected, strict=True):
        assert torch.equal(grad, exact)


def test_repeated_heads_need_no_copy():
    q, k, v = (x.detach() for x in tensors(PLAN))
    shared = [x[:, :1].expand(-1, 2, -1) for x in (k, v)]
    assert torch.equal(marble.attention(q, *shared, PLAN), marble.attention(q, *(x.clone() for x in shared), PLAN))


def test_an_expanded_gradient_is_read_as_it_is():
    """As that of a sum over rows is: one row in memory."""
    inputs = tensors(PLAN)
    (expected,) = torch.autograd.grad(marble.attention(*inputs, PLAN).clone().sum(0).square().sum(), inputs[1])
    out = marble.attention(*inputs, PLAN)
    strides = []
    out.register_hook(lambda grad: strides.append(grad.stride()))
    (grad,) = torch.autograd.grad(out.sum(0).square().sum(), inputs[1])
    assert strides == [(0, 8, 1)] and torch.equal(grad, expected)


def test_an_empty_pack_gives_empty_tensors():
    plan = marble.plan(marble.Layout([]), model=MODEL)
    inputs = tensors(plan)
    out, lse = marble.attention(*inputs, plan, return_lse=True)
    assert out.shape == (0, 4, 8) and lse.shape == (0, 4)
    grads = torch.autograd.grad(out.sum() + lse.sum(), inputs)
    assert [grad.shape for grad in grads] == [x.shape for x in inputs]
    assert plan.unshard(out).shape == (0, 4, 8) and plan.shard(torch.ones(0, 3)).shape == (0, 3)
    assert plan.pieces() == [] and plan.rope_positions().shape == (0,)


def test_meta_tensors_give_shapes():
    out, lse = marble.attention(*(x.to("meta") for x in tensors(PLAN)), PLAN, return_lse=True)
    assert out.is_meta and out.shape == (PLAN.rows, 4, 8) and lse.shape == (PLAN.rows, 4)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_values_are_copied(copied, tmp_path):
    layout = marble.Layout(PACKS[1])
    assert copied(layout) == layout and hash(copied(layout)) == hash(layout)
    assert copied(MODEL) == MODEL and hash(copied(MODEL)) == hash(MODEL)
    assert copied(marble.Mesh(ring=3)) == marble.Mesh(ring=3)
    plan = marble.plan(layout, model=MODEL, block=16, keep="fetched")
    inputs = tensors(plan)
    other = copied(plan)
    assert other.digest == plan.digest and other.pieces() == plan.pieces()
    assert [x.shape for x in other.kept] == [x.shape for x in plan.kept]
    assert torch.equal(marble.attention(*inputs, other), marble.attention(*inputs, plan))
    torch.save(plan, tmp_path / "plan.pt")
    assert torch.load(tmp_path / "plan.pt", weights_only=False).digest == plan.digest


def test_models_are_equal_by_value_and_order():
    same = marble.Model(heads=4, kv_heads=2, head_dim=8, layers={None: 1, marble.Window(16): 1})
    other = marble.Model(heads=4, kv_heads=2, head_dim=8, layers={16: 1, None: 1})  # whose layer 0 has the window
    assert same == MODEL and hash(MODEL) == hash(same)
    assert other != MODEL and MODEL != 3


def test_values_say_what_they_are():
    assert repr(PLAN) == "Plan(200 tokens, rank 0 of 1, 208 rows)"
    assert repr(marble.Layout(PACKS[1])) == "Layout(2 samples, 200 tokens)"
    assert repr(MODEL).startswith("Model(heads=4, kv_heads=2, head_dim=8, layers={None: 1, 16: 1}")
    assert repr(marble.Mesh(ring=2)).startswith("Mesh(ring=2, ulysses=1,")

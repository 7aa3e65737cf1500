# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Exactness: attention through the Python interface against dense masked attention."""

import marble
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masks import dense_mask, layouts
from reference import dense_attention, relative_error

MIXED = [
    [("causal", 61), ("full", 47), ("causal", 13), ("full", 1), ("causal", 20)],
    [("causal", 7), ("noise", 40), ("full", 40), ("causal", 5), ("noise", 33, 1), ("causal", 3), ("noise", 9, 1)],
    [("causal", 5), ("group", 37), ("causal", 6), ("group", 30), ("causal", 11), ("branch", 19), ("branch", 23)],
    [],
    [("causal", 1)],
]
KEEPS = ["nothing", "scattered", "fetched"]
MESHES = [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (4, 4), (3, 3)]


RINGS = [mesh for mesh in MESHES if mesh[0] > mesh[1]]
STRATEGIES = [(*mesh, "ring") for mesh in MESHES] + [
    (*mesh, name) for mesh in RINGS for name in ("alltoall", "allgather")
]


@pytest.mark.parametrize(("ranks", "ulysses", "strategy"), STRATEGIES)
def test_every_mesh_and_strategy_is_exact(pool, ranks, ulysses, strategy):
    pool.run(ranks, "attention_is_dense", MIXED, ulysses=ulysses, strategy=strategy, layers={None: 1, 30: 1})


@pytest.mark.parametrize("placement", ["contiguous", "zigzag", "striped", "ptrr", "chunks", "dealt"])
@pytest.mark.parametrize("canonical", ["sequence", "stack"])
def test_every_placement_is_exact(pool, placement, canonical):
    pool.run(4, "attention_is_dense", MIXED, placement=placement, canonical=canonical, layers={None: 1, 30: 1})


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "ulysses"), [(5, 5, 4, 4), (6, 2, 4, 4), (3, 1, 2, 2), (7, 7, 3, 3), (4, 1, 4, 2)]
)
def test_heads_that_ulysses_does_not_divide_are_exact(pool, heads, kv_heads, ranks, ulysses):
    pool.run(ranks, "attention_is_dense", MIXED, heads=heads, kv_heads=kv_heads, ulysses=ulysses)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("ranks", "ulysses"), [(1, 1), (4, 2)])
def test_low_precision_is_as_exact_as_its_rounding(pool, dtype, ranks, ulysses):
    pool.run(ranks, "attention_is_dense", MIXED, ulysses=ulysses, dtype=dtype)


@pytest.mark.parametrize("keep", KEEPS[1:])
@pytest.mark.parametrize(("ranks", "ulysses", "strategy"), [(4, 1, "ring"), (4, 2, "alltoall"), (3, 3, "ring")])
def test_what_backward_keeps_is_exact(pool, ranks, ulysses, strategy, keep):
    pool.run(ranks, "attention_is_dense", MIXED, ulysses=ulysses, strategy=strategy, layers={None: 1, 30: 1}, keep=keep)
    pool.run(ranks, "attention_is_dense", MIXED, ulysses=ulysses, strategy=strategy, keep=keep, dtype="bfloat16")


def test_what_backward_keeps_is_not_received_again(pool):
    received = [pool.run(4, "bytes_received_backward", MIXED, keep=keep) for keep in KEEPS]
    assert all(first > second > third for first, second, third in zip(*received, strict=True)), received


@pytest.mark.parametrize(
    "options", [{"gaps": True}, {"softcap": 5.0}, {"dim": 40}, {"block": 8}, {"block": 64}], ids=str
)
def test_strides_softcap_dims_and_blocks_are_exact(pool, options):
    pool.run(2, "attention_is_dense", MIXED, **options)


@pytest.mark.parametrize(
    "samples",
    [
        [[("causal", 7)]],
        [[("full", 1)]],
        [[("causal", 3)], [("noise", 2)]],
        [[("causal", 137)], [("causal", 241)], [("causal", 89)], [("causal", 1)]],
    ],
)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_length_need_divide(pool, samples, ranks):
    pool.run(ranks, "attention_is_dense", samples)


@settings(max_examples=20)
@given(
    layout=layouts(max_samples=4, max_length=60),
    mesh=st.sampled_from(MESHES),
    window=st.sampled_from([None, 1, 7, 64, marble.Window(9, clamp=True)]),
    strategy=st.sampled_from([None, "ring", "alltoall", "allgather"]),
    placement=st.sampled_from([None, "contiguous", "zigzag", "striped", "ptrr", "chunks", "dealt"]),
    keep=st.sampled_from(KEEPS),
    block=st.sampled_from([8, 16, 128]),
    gaps=st.booleans(),
)
def test_any_layout_is_exact(pool, layout, mesh, window, strategy, placement, keep, block, gaps):
    ranks, ulysses = mesh
    pool.run(
        ranks,
        "attention_is_dense",
        layout.samples(),
        ulysses=ulysses,
        layers={window: 1},
        strategy=strategy,
        placement=placement,
        keep=keep,
        block=block,
        gaps=gaps,
    )


def _solo(samples, **kwargs):
    layout = marble.Layout(samples)
    model = marble.Model(heads=2, kv_heads=1, head_dim=16, layers={None: 1, 8: 1})
    return layout, marble.plan(layout, model=model, block=16, **kwargs)


def test_perturbing_a_key_moves_only_rows_that_may_see_it():
    layout, plan = _solo(MIXED)
    tokens = layout.num_tokens
    q, k, v = (torch.randn(tokens, heads, 16) for heads in (2, 1, 1))
    for window in (None, 8):
        mask = dense_mask(layout, window or 0)

        def out(k, v, window=window):
            return plan.unshard(marble.attention(*(plan.shard(x) for x in (q, k, v)), plan, window=window))

        base = out(k, v)
        for key in range(0, tokens, 37):
            other_k, other_v = k.clone(), v.clone()
            other_k[key] += 3
            other_v[key] += 3
            moved = (out(other_k, other_v) != base).flatten(1).any(1)
            assert torch.equal(moved, mask[:, key])


def test_a_pad_may_hold_anything():
    _, plan = _solo([[("causal", 21)]])
    assert plan.rows > 21
    tensors = [plan.shard(torch.randn(21, heads, 16), fill=torch.nan).requires_grad_() for heads in (2, 1, 1)]
    out = marble.attention(*tensors, plan)
    grads = torch.autograd.grad(out.sum(), tensors)
    assert all(torch.isfinite(x).all() for x in (out, *grads))
    assert all((x[21:] == 0).all() for x in (out, *grads))


def test_a_rank_without_tokens_gives_zeros(pool):
    pool.run(4, "attention_is_dense", [[("causal", 16)]], block=16)


def test_two_runs_give_equal_bits():
    _, plan = _solo(MIXED)
    tensors = [torch.randn(plan.rows, heads, 16, requires_grad=True) for heads in (2, 1, 1)]
    runs = []
    for _ in range(2):
        out = marble.attention(*tensors, plan)
        runs.append((out, *torch.autograd.grad(out.square().sum(), tensors)))
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_documents_in_one_pack_are_as_each_alone():
    lengths = [30, 1, 57, 12]
    _layout, plan = _solo([[("causal", length)] for length in lengths])
    q, k, v = (torch.randn(sum(lengths), heads, 16) for heads in (2, 1, 1))
    packed = plan.unshard(marble.attention(*(plan.shard(x) for x in (q, k, v)), plan))
    begin = 0
    for length in lengths:
        part = slice(begin, begin + length)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        alone, _ = dense_attention(q[part], k[part], v[part], mask, 16**-0.5)
        assert relative_error(packed[part], alone) < 1e-5
        begin += length


def test_softmax_scale_is_honoured():
    layout, plan = _solo([[("causal", 40)]])
    q, k, v = (torch.randn(40, heads, 16) for heads in (2, 1, 1))
    out = plan.unshard(marble.attention(*(plan.shard(x) for x in (q, k, v)), plan, softmax_scale=0.3))
    assert relative_error(out, dense_attention(q, k, v, dense_mask(layout), 0.3)[0]) < 1e-5

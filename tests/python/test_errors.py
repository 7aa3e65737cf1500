# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input: the exception names argument, value and expectation."""

import marble
import pytest
import torch

LAYOUT = marble.Layout([[("causal", 50)]])
MODEL = marble.Model(heads=4, kv_heads=2, head_dim=8)
PLAN = marble.plan(LAYOUT, model=MODEL, block=16)
Q, K = torch.randn(PLAN.rows, 4, 8), torch.randn(PLAN.rows, 2, 8)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((Q[:-1], K, K), {}, ValueError, r"q: shape \[63, 4, 8\] should be \[rows, heads, head_dim\] = \[64, 4, 8\]"),
        ((K, K, K), {}, ValueError, r"q: shape \[64, 2, 8\]"),
        ((Q, Q, K), {}, ValueError, r"k: shape \[64, 4, 8\] should be .* = \[64, 2, 8\]"),
        ((Q, K, K[..., :4]), {}, ValueError, r"v: shape \[64, 2, 4\]"),
        ((Q[None], K, K), {}, ValueError, r"q: shape \[1, 64, 4, 8\]"),
        ((Q, K.half(), K), {}, TypeError, "k: torch.float16 should be q's torch.float32"),
        ((Q.double(), K, K), {}, TypeError, "q: torch.float64 should be float32, bfloat16 or float16"),
        ((Q, K.to("meta"), K), {}, ValueError, "k: on meta, should be on q's cpu"),
        ((Q.numpy(), K, K), {}, TypeError, "q: ndarray should be a torch.Tensor"),
        ((Q, K, None), {}, TypeError, "v: NoneType should be a torch.Tensor"),
        ((Q, K.to_sparse(), K), {}, TypeError, "k: torch.sparse_coo should be torch.strided"),
        ((Q, K, K), {"window": 5}, ValueError, "window: 5 is no layer kind of this plan's model, which has None"),
        ((Q, K, K), {"window": "5"}, TypeError, "window: '5' should be None, an integer"),
        ((Q, K, K), {"softmax_scale": 0.0}, ValueError, "softmax_scale: 0.0 should be positive"),
        ((Q, K, K), {"softmax_scale": "1"}, TypeError, "softmax_scale: '1' should be a number"),
        ((Q, K, K), {"softcap": -1.0}, ValueError, "softcap: -1.0 should be 0"),
    ],
)
def test_attention_refuses_by_name(arguments, options, error, words):
    with pytest.raises(error, match=words):
        marble.attention(*arguments, PLAN, **options)


def test_plans_are_checked():
    with pytest.raises(TypeError, match="plan: Layout should be a marble.Plan"):
        marble.attention(Q, K, K, LAYOUT)
    with pytest.raises(TypeError, match="layout: list should be a marble.Layout"):
        marble.plan([[("causal", 3)]], model=MODEL)
    with pytest.raises(ValueError, match="placement"):
        marble.plan(LAYOUT, model=MODEL, placement="nowhere")
    for name, value in {"placement": 3, "keep": None, "block": "16", "mesh": 2, "model": None, "rank": "0"}.items():
        with pytest.raises(TypeError, match=f"{name}: {type(value).__name__} should be a "):
            marble.plan(**{"layout": LAYOUT, "model": MODEL, name: value})
    with pytest.raises(ValueError, match="keep.*everything.*nothing, scattered, fetched"):
        marble.plan(LAYOUT, model=MODEL, keep="everything")
    with pytest.raises(ValueError, match="rank: 3 should be in 0..1"):
        marble.plan(LAYOUT, model=MODEL, mesh=marble.Mesh(ring=2), rank=3)
    simulated = marble.plan(LAYOUT, model=MODEL, mesh=marble.Mesh(ring=2), block=16)
    with pytest.raises(ValueError, match="its mesh has 2 ranks but no process group"):
        marble.attention(Q[: simulated.rows], K[: simulated.rows], K[: simulated.rows], simulated)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"heads": 3, "kv_heads": 2, "head_dim": 8}, ValueError, "heads: 3 should be a multiple of kv_heads 2"),
        ({"heads": 0, "kv_heads": 2, "head_dim": 8}, ValueError, "heads: 0 should be at least 1"),
        ({"heads": 4, "kv_heads": 2, "head_dim": 8.0}, TypeError, "head_dim: 8.0 should be an integer"),
        ({"heads": 4, "kv_heads": 2, "head_dim": 8, "layers": {}}, ValueError, "layers: should name at least one"),
        ({"heads": 4, "kv_heads": 2, "head_dim": 8, "layers": {None: 0}}, ValueError, "layers: count 0"),
    ],
)
def test_models_are_checked(arguments, error, words):
    with pytest.raises(error, match=words):
        marble.Model(**arguments)


def test_sharding_refuses_by_name():
    with pytest.raises(ValueError, match=r"x: shape \[49, 3\] should have 50 tokens on axis 0"):
        PLAN.shard(torch.zeros(49, 3))
    with pytest.raises(ValueError, match="should have 64 rows on axis 1"):
        PLAN.unshard(torch.zeros(64, 50), dim=1)
    with pytest.raises(ValueError, match="dim: 2 should be an axis of x"):
        PLAN.shard(torch.zeros(50, 3), dim=2)
    with pytest.raises(ValueError, match="grad: 'none' should be 'partial' or 'summed'"):
        PLAN.shard(torch.zeros(50), grad="none")
    with pytest.raises(TypeError, match="x: list should be a torch.Tensor"):
        PLAN.shard([0] * 50)
    with pytest.raises(ValueError, match="positions: 3..50 should be in 0..49"):
        PLAN.redistribute(torch.zeros(2, 4), torch.tensor([3, 50]))
    with pytest.raises(ValueError, match="features: 3 rows should match the 2 positions"):
        PLAN.redistribute(torch.zeros(3, 4), torch.tensor([3, 4]))


def test_a_broken_rank_plan_is_refused():
    broken = PLAN.rank_plans[0].clone()
    broken[-1] ^= 1
    with pytest.raises(ValueError, match="rank plan"):
        torch.ops.marble.attention_forward(Q, K, K, broken, PLAN.kept[0], "", 1.0, 0.0, False)
    with pytest.raises(ValueError, match="rank_plan: 5 bytes are too few"):
        torch.ops.marble.attention_forward(Q, K, K, broken[:5], PLAN.kept[0], "", 1.0, 0.0, False)
    with pytest.raises(ValueError, match="group: no process group 'nobody' in this process"):
        torch.ops.marble.attention_forward(Q, K, K, PLAN.rank_plans[0], PLAN.kept[0], "nobody", 1.0, 0.0, False)


def test_refusals_come_before_communication(pool):
    pool.run(2, "refusals_come_before_communication")


def test_a_lone_refusal_ends_the_others_waits(pool):
    pool.run(4, "a_lone_refusal_ends_the_others_waits", limit=60)


def test_different_plans_are_refused(pool):
    pool.run(3, "different_plans_are_refused")

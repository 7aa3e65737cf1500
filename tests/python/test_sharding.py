# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Shards, pieces, features and losses."""

import pickle

import marble
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from masks import layouts

SAMPLES = [[("causal", 50), ("full", 30)], [("noise", 21), ("causal", 40)], [("causal", 33)]]
MODEL = marble.Model(heads=4, kv_heads=2, head_dim=8)


@pytest.mark.parametrize(("ranks", "ulysses"), [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_a_round_trip_returns_the_tokens(pool, ranks, ulysses):
    pool.run(ranks, "shard_and_unshard_return", SAMPLES, ulysses)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_features_reach_their_rows(pool, ranks):
    pool.run(ranks, "features_reach_their_rows", SAMPLES)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_mean_is_global(pool, ranks):
    pool.run(ranks, "mean_is_global", SAMPLES)


@given(layouts(max_length=60), st.integers(1, 5), st.integers(1, 3))
def test_pieces_cover_each_token_once(layout, ring, ulysses):
    mesh = marble.Mesh(ring=ring, ulysses=ulysses)
    plans = [marble.plan(layout, model=MODEL, mesh=mesh, rank=rank, block=16) for rank in range(mesh.size)]
    assert len({plan.digest for plan in plans}) == 1
    assert len({plan.rows for plan in plans}) == 1
    seen = torch.zeros(layout.num_tokens, dtype=torch.int64)
    for rank, plan in enumerate(plans):
        assert plan.pieces() == plans[0].pieces(rank)
        for piece in plan.pieces():
            seen[piece.position : piece.position + piece.length] += 1
            rows = plan.positions[piece.row : piece.row + piece.length]
            assert rows.tolist() == list(range(piece.position, piece.position + piece.length))
    assert (seen == 1).all()


@given(layouts(max_length=60), st.integers(1, 4))
def test_rope_positions_restart_at_each_sample(layout, ring):
    inside = torch.from_numpy(layout.positions_in_sample())
    plan = marble.plan(layout, model=MODEL, mesh=marble.Mesh(ring=ring), rank=ring - 1, block=16)
    assert torch.equal(plan.rope_positions(), plan.shard(inside))


def test_rows_depend_on_tokens_and_mesh_only():
    packs = [[[("causal", 500)]], [[("causal", 250), ("noise", 250)]], [[("full", 10)]] * 50]
    plans = [marble.plan(marble.Layout(pack), model=MODEL, mesh=marble.Mesh(ring=3)) for pack in packs]
    assert len({plan.rows for plan in plans}) == 1
    assert len({plan.digest for plan in plans}) == 3


def test_a_plan_survives_pickling_and_knows_its_layout():
    layout = marble.Layout(SAMPLES)
    plan = pickle.loads(pickle.dumps(marble.plan(layout, model=MODEL, block=16)))
    plan.check_layout(layout)
    with pytest.raises(ValueError, match="made for another layout"):
        plan.check_layout(marble.Layout([[("causal", 3)]]))
    x = torch.randn(layout.num_tokens)
    assert torch.equal(plan.unshard(plan.shard(x)), x)
    assert plan.layout == layout


def test_a_plan_beside_a_device_is_the_same_plan():
    plan = marble.plan(marble.Layout(SAMPLES), model=MODEL, block=16)
    assert repr(plan) == f"Plan(174 tokens, rank 0 of 1, {plan.rows} rows)"
    moved = plan.to("cpu", non_blocking=True)
    assert moved.digest == plan.digest and moved.pieces() == plan.pieces()
    assert torch.equal(moved.positions, plan.positions) and torch.equal(moved.rope_positions(), plan.rope_positions())


def test_explain_names_placement_choice_balance_and_keys():
    layout, mesh = marble.Layout(SAMPLES), marble.Mesh(ring=2)
    words = marble.plan(layout, model=MODEL, mesh=mesh, block=16).explain()
    for word in (
        "3 samples, 174 tokens on ring 2 x ulysses 1",
        "the planner's choice:",
        "ms predicted",
        "busiest rank over mean",
        "keys received",
    ):
        assert word in words
    given = marble.plan(layout, model=MODEL, mesh=mesh, block=16, placement="striped", strategy="ring", keep="fetched")
    assert "given; the planner would choose" in given.explain()
    assert "each keeps fetched for backward: 0." in given.explain()

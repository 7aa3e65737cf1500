# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Plans made in loader workers."""

import marble
import torch
from marble.loader import CachedPlanner, PlanningCollate
from torch.utils.data import DataLoader

MODEL = marble.Model(heads=4, kv_heads=2, head_dim=8, layers={None: 1, 16: 1})
LENGTHS = [[30, 50], [80], [30, 50], [10, 70]]


def layout_of(batch):
    return marble.Layout([[("causal", length)] for length in batch["lengths"]])


def test_workers_plan_and_the_trainer_attends():
    packs = [{"lengths": lengths, "x": torch.randn(80, 4, 8)} for lengths in LENGTHS]
    collate = PlanningCollate(layout_of, model=MODEL, mesh=marble.Mesh(), block=16)
    loader = DataLoader(packs, batch_size=None, collate_fn=collate, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):  # two epochs
        batches = list(loader)
        assert [batch["lengths"] for batch in batches] == LENGTHS
        for batch in batches:
            plan = batch["plan"]
            plan.check_layout(layout_of(batch))
            local = marble.plan(layout_of(batch), model=MODEL, block=16)
            assert plan.digest == local.digest
            assert all(torch.equal(*pair) for pair in zip(plan.rank_plans, local.rank_plans, strict=True))
            assert torch.equal(plan.positions, local.positions) and torch.equal(plan.data, local.data)
            x = plan.shard(batch["x"])
            marble.attention(x, x[:, :2], x[:, :2], plan, window=16)


def test_a_loader_that_keeps_process_groups_out_of_its_workers_plans_for_its_rank():
    mesh = marble.Mesh(ring=4, rank=2)
    plan = CachedPlanner(model=MODEL, mesh=mesh, block=16)(layout_of({"lengths": [80]}))
    assert plan.mesh.rank == 2
    assert plan.pieces() == marble.plan(layout_of({"lengths": [80]}), model=MODEL, mesh=mesh, block=16).pieces(2)


def test_equal_layouts_are_planned_once():
    planner = CachedPlanner(model=MODEL, mesh=marble.Mesh(), cache_size=2, block=16)
    plans = [planner(layout_of({"lengths": lengths})) for lengths in LENGTHS]
    assert plans[0] is plans[2]
    assert planner(layout_of({"lengths": LENGTHS[0]})) is plans[0]
    assert planner(layout_of({"lengths": LENGTHS[1]})) is not plans[1]  # pushed out


def test_a_collate_function_keeps_its_batch():
    collate = PlanningCollate(
        layout_of,
        model=MODEL,
        mesh=marble.Mesh(),
        collate=lambda samples: {"lengths": [80], "n": len(samples)},
        key="marble_plan",
    )
    batch = collate([1, 2, 3])
    assert batch["n"] == 3 and batch["marble_plan"].tokens == 80

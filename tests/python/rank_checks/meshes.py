# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Meshes of the pool's groups."""

import os

import marble
import torch
import torch.distributed as dist


def mesh_of(group, ulysses=1):
    """A mesh of all ranks of a group, with the transport that the pool is for."""
    return marble.Mesh.from_group(group, ulysses=ulysses, transport=os.environ.get("MARBLE_TEST_TRANSPORT", "auto"))


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

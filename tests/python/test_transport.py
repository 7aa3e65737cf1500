# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Process groups: a silent peer ends in a clear error; meshes from groups and device meshes."""

import marble
import pytest


def test_a_silent_peer_ends_in_a_named_error(pool):
    pool.run(4, "a_silent_peer_is_named", limit=60)


def test_meshes_come_from_groups_and_device_meshes(pool):
    pool.run(4, "meshes_agree")


def test_other_threads_and_groups_do_not_meet(pool):
    pool.run(4, "two_groups_run_at_once")


def test_a_mesh_is_checked():
    assert marble.Mesh().size == 1
    assert marble.Mesh.from_env() == marble.Mesh(ranks_per_node=1)
    with pytest.raises(ValueError, match="ring: 0 should be at least 1"):
        marble.Mesh(ring=0)
    with pytest.raises(TypeError, match=r"ulysses: 1\.5 should be an integer"):
        marble.Mesh(ulysses=1.5)
    with pytest.raises(ValueError, match=r"rank: 4 should be in 0\.\.3"):
        marble.Mesh(ring=4, rank=4)
    with pytest.raises(ValueError, match="transport: 'post' should be one of auto, own, group"):
        marble.Mesh(transport="post")


def test_torchruns_environment_is_read(monkeypatch):
    for name, value in (("WORLD_SIZE", "8"), ("RANK", "5"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert marble.Mesh.from_env(ulysses=2) == marble.Mesh(ring=4, ulysses=2, ranks_per_node=4, rank=5)
    with pytest.raises(ValueError, match="ulysses: 3 should divide the 8 ranks"):
        marble.Mesh.from_env(ulysses=3)


def test_staged_messages_are_exact(pool):
    pool.run(4, "staged_messages_are_exact")


def test_a_failed_transport_stays_failed(pool):
    pool.run(2, "a_failed_transport_stays_failed")


def test_texts_are_gathered_through_the_store(pool):
    pool.run(4, "texts_are_gathered_through_the_store", limit=30)

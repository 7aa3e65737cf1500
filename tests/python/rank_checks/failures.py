# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Refusals and failures, which end every rank."""

import marble
import torch
import torch.distributed as dist

from .meshes import mesh_of


def refusals_come_before_communication(group, device="cpu"):
    """Bad arguments raise on every rank, again and again; after each the group still works."""
    layout = marble.Layout([[("causal", 500)]])
    model = marble.Model(heads=4, kv_heads=2, head_dim=8)
    dtype, block = (torch.float32, 16) if device == "cpu" else (torch.bfloat16, 128)
    plan = marble.plan(layout, model=model, mesh=mesh_of(group), block=block)
    q, k = (
        torch.randn(rows, heads, 8, device=device, dtype=dtype) for rows, heads in ((plan.rows + 1, 4), (plan.rows, 2))
    )
    for _ in range(2):
        try:
            marble.attention(q, k, k, plan)
        except ValueError as error:
            assert f"q: shape [{plan.rows + 1}, 4, 8] should be" in str(error), error
        else:
            raise AssertionError("a wrong local length was accepted")
        assert torch.isfinite(marble.attention(q[:-1], k, k, plan)).all()
        plan.mesh.check()


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
            bound.forward(*views, marble.ops._scalar_view(torch.ones(plan.rows, 2)), 0)
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

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""MARBLE's own transport between GPUs, for the ranks of a process group, which only helps them to find each other."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist

from marble import _native
from marble.transport import TIME_LIMIT, Notices


def make_own_transport(
    group: dist.ProcessGroup, notices: Notices, device: torch.device, stream: int
) -> tuple[_native.Transport | None, str]:
    """The transport, or None with the reason why not all ranks can have it: the same on all ranks. Collective."""
    if not _native.nccl_available():
        return None, "this build of marble has none"
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    address, port = notices.gather(f"{_own_address()} {_free_port()}" if rank == 0 else "")[0].split()
    transport, problem = None, ""
    try:
        limit = TIME_LIMIT.total_seconds()
        transport = _native.nccl_transport(rank, size, device.index, address, int(port), stream, limit)
    except (ValueError, _native.Error) as error:
        problem = f"rank {rank}: {error}"
    problems = [other for other in notices.gather(problem) if other]
    return (None, problems[0]) if problems else (transport, "")


def _own_address() -> str:
    """The address of this host that others reach it at: the one by which it reaches MASTER_ADDR."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # sends nothing
        address = probe.getsockname()[0]
    return master if address.startswith("127.") else address


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]

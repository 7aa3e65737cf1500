# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The registry of process groups, and what each group carries: the only global state, keyed by the group's name."""

from __future__ import annotations

import atexit
import threading
from collections import Counter
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from marble.session import Session
    from marble.transport import HostPeers, Notices

SOLO = ""  # a mesh of one rank has no group
TRANSPORTS = ("auto", "own", "group")

_lock = threading.Lock()
_groups: dict[str, dist.ProcessGroup] = {}
_choices: dict[str, str] = {}
_notices: dict[str, Notices] = {}
_peers: dict[tuple[str, str], HostPeers] = {}
_epochs: Counter[str] = Counter()  # how often each name was used for a group
_sessions: dict[tuple[str, str, int], Session] = {}
atexit.register(_sessions.clear)


def register_group(group: dist.ProcessGroup, transport: str | None = None) -> str:
    """
    Remembers a process group under its name, which is what operators take, and which of TRANSPORTS moves its messages
    (None: as it was).
    """
    name = group.group_name
    with _lock:
        choice = transport or _choices.get(name, TRANSPORTS[0])
        is_same = _groups.get(name) is group and _choices.get(name) == choice
    if not is_same:
        forget_group(name)
    with _lock:
        _groups[name] = group
        _choices[name] = choice
    return name


def choice_of(name: str) -> str:
    """How a group's messages shall travel."""
    with _lock:
        return _choices.get(name, TRANSPORTS[0])


def group_of(name: str) -> dist.ProcessGroup:
    """The registered process group; ValueError when there is none of that name."""
    with _lock:
        if name in _groups:
            return _groups[name]
    raise ValueError(
        f"group: no process group {name!r} in this process; initialise torch.distributed, then make the mesh "
        "(marble.Mesh, Mesh.from_group, Mesh.from_device_mesh or Mesh.from_env)"
    )


def notices_of(name: str) -> Notices:
    """What a group's ranks say about failed calls."""
    from marble.transport import Notices

    group = group_of(name)
    with _lock:
        if name not in _notices:
            _notices[name] = Notices(group, _epochs[name])
            _epochs[name] += 1
        return _notices[name]


def peers_of(name: str, device: torch.device) -> HostPeers:
    """What moves a group's messages to and from a device: one sequence of messages between each two ranks."""
    from marble.transport import make_peers

    group, notices = group_of(name), notices_of(name)
    with _lock:
        if (name, device.type) not in _peers:
            _peers[name, device.type] = make_peers(group, notices, device)
        return _peers[name, device.type]


def session_of(name: str, device: torch.device) -> Session:
    """The session of a group on a device's current stream, made at its first use."""
    from marble.session import Session

    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = (name, str(device), stream)
    with _lock:
        if key in _sessions:
            return _sessions[key]
    if name != SOLO:  # what is made together is made by all: not while the others are in a call that this rank refused
        notices_of(name).settle()
    session = Session(name, device, stream)
    with _lock:
        return _sessions.setdefault(key, session)


def refuse_call(name: str, reason: str, *, is_counted: bool = False) -> None:
    """
    Tells the ranks that wait for this one in a call that it takes no part in it: the present call, or (not
    ``is_counted``) one that it does not even begin.
    """
    if name == SOLO or torch.compiler.is_compiling():
        return
    notices = notices_of(name)
    if not is_counted:
        notices.begin_call()
    notices.refuse(reason)
    for session in sessions_of(name):
        if session.has_own_transport:  # which tells GPUs that wait
            session.fail(reason)
            _drop(session)


def sessions_of(name: str) -> list[Session]:
    """What this process has made for a group so far."""
    with _lock:
        return [session for key, session in _sessions.items() if key[0] == name]


def forget_group(name: str = SOLO) -> None:
    """Drops a group with its transport, workspaces and caches: after a TransportError, or before the group is
    destroyed.
    """
    sessions = sessions_of(name)
    with _lock:
        _groups.pop(name, None)
        _notices.pop(name, None)
        for device in [key for key in _peers if key[0] == name]:
            del _peers[device]
    for session in sessions:
        _drop(session)


def _drop(session: Session) -> None:
    """Forgets a session, which ends when nobody uses it any more: not under the lock, since that may take a while."""
    with _lock:
        for key in [key for key, known in _sessions.items() if known is session]:
            del _sessions[key]

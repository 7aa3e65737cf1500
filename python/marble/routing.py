# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank and row holds each token of a list, and the exchanges that bring features there and gradients back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from marble.transport import control_device

if TYPE_CHECKING:
    from marble.session import Session


class Route:
    """
    Made collectively: every rank brings its own list of pack positions, int64 [n], possibly empty.

    ``rows``: the row of this rank that each arriving feature belongs to, in order of sender.
    """

    def __init__(self, session: Session, positions: Tensor, plan_data: Tensor, rows: int) -> None:
        self._session = session
        device = torch.device("cpu") if session.group is None else control_device(session.group)
        places = session.index_of_tokens(plan_data, device)[positions.to(device)]
        self._order = torch.argsort(places // max(rows, 1), stable=True)
        places = places[self._order]
        counts = torch.bincount(places // max(rows, 1), minlength=session.num_ranks)
        self._sent = counts.tolist()
        self._received = self._sent
        if session.group is not None:
            incoming = torch.empty_like(counts)
            dist.all_to_all_single(incoming, counts, group=session.group)
            self._received = incoming.tolist()
        self.rows = self._exchange(places % max(rows, 1), self._sent, self._received)

    def send(self, features: Tensor) -> Tensor:
        """Features [n, ...] to the ranks that hold their tokens; returns those that arrived here."""
        return self._exchange(features[self._order.to(features.device)], self._sent, self._received)

    def send_back(self, grads: Tensor) -> Tensor:
        """Gradients of what arrived, back to where it came from, in the order of ``positions``."""
        sorted_grads = self._exchange(grads, self._received, self._sent)
        back = torch.empty_like(sorted_grads)
        back[self._order.to(grads.device)] = sorted_grads
        return back

    def _exchange(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        if self._session.group is None:
            return x.contiguous()
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=self._session.group)
        return out

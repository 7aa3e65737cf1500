# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Planning where batches are made, so that the training step never waits for a plan."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from marble.layout import Layout
from marble.mesh import Mesh
from marble.model import Model
from marble.plan import Plan, plan


class PlanningCollate:
    """
    A collate function that adds a plan to each batch; give it to a DataLoader with workers.

        loader = DataLoader(packs, batch_size=None, num_workers=2,
                            collate_fn=PlanningCollate(lambda pack: pack["layout"], model=model, mesh=mesh))
        for batch in loader:
            plan = batch["plan"]

    ``layout_of`` takes what ``collate`` (default: the batch unchanged) returns, a dict, and returns its Layout; the
    plan is added under ``key``. Plans travel through shared memory. Layouts of equal value are planned once per
    worker: the last ``cache_size`` plans are kept. ``options`` are those of :func:`marble.plan`. Picklable when its
    functions are.
    """

    def __init__(
        self,
        layout_of: Callable[[Any], Layout],
        *,
        model: Model,
        mesh: Mesh,
        collate: Callable[[Any], dict[str, Any]] | None = None,
        key: str = "plan",
        cache_size: int = 16,
        **options: Any,
    ) -> None:
        self._layout_of = layout_of
        self._collate = collate
        self._key = key
        self._planner = CachedPlanner(model=model, mesh=mesh, cache_size=cache_size, **options)

    def __call__(self, samples: Any) -> dict[str, Any]:
        """The collated batch with its plan."""
        batch = samples if self._collate is None else self._collate(samples)
        return {**batch, self._key: self._planner(self._layout_of(batch))}


class CachedPlanner:
    """Plans layouts for one model and mesh, once per value."""

    def __init__(self, *, model: Model, mesh: Mesh, cache_size: int = 16, **options: Any) -> None:
        self._model = model
        self._mesh = mesh
        self._cache_size = cache_size
        self._options = options
        self._plans: OrderedDict[Layout, Plan] = OrderedDict()

    def __call__(self, layout: Layout) -> Plan:
        """The plan of a layout, from the cache when an equal layout was planned before."""
        if layout not in self._plans:
            self._plans[layout] = plan(layout, model=self._model, mesh=self._mesh, **self._options)
            while len(self._plans) > self._cache_size:
                self._plans.popitem(last=False)
        self._plans.move_to_end(layout)
        return self._plans[layout]

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""A plan in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marble import _native
from marble.groups import sessions_of

if TYPE_CHECKING:
    from marble.plan import Plan

CANDIDATES_SHOWN = 4


def explain(plan: Plan) -> str:
    """Placement, balance, exchanged keys and per-step work; one line per fact."""
    native = plan.native
    mesh = plan.mesh
    layout = plan.layout
    lines = [
        f"{layout.num_samples} samples, {plan.tokens:,} tokens on ring {mesh.ring} x ulysses {mesh.ulysses}: "
        f"{plan.rows:,} rows per rank, block {native.block}",
        f"placement {native.placement} over {native.canonical} order",
        *_explain_choice(plan),
    ]
    for layer, (window, count) in enumerate(zip(plan.model.windows, plan.model.layers.values(), strict=True)):
        lines += _explain_layer(plan, layer, window.size, window.clamp, count)
    lines += [f"messages on {session.describe()}" for session in sessions_of(mesh.group) if mesh.size > 1]
    return "\n".join(lines)


def _explain_choice(plan: Plan) -> list[str]:
    """Why the planner chose this, or what it would choose in place of what was given."""
    native = plan.native
    why, candidates = _native.choice_for(native, 2)
    placement, strategies, *_ = candidates[0]
    if (placement, strategies) == (native.placement, native.strategies):
        lines = [f"  the planner's choice: {why}"]
    else:
        lines = [f"  given; the planner would choose {placement} with {', '.join(strategies)}: {why}"]
    for placement, strategies, nanoseconds, size, fits in candidates[:CANDIDATES_SHOWN]:
        too_large = "" if fits else ", does not fit"
        lines.append(
            f"  {placement:<10} {'/'.join(strategies):<20} {nanoseconds / 1e6:10,.3f} ms predicted, "
            f"{size / 2**20:,.0f} MiB{too_large}"
        )
    return lines


def _explain_layer(plan: Plan, layer: int, window: int, clamp: bool, count: int) -> list[str]:
    native = plan.native
    pairs = plan.layout.legal_pairs(window, clamp=clamp)
    total, by_step, _, _ = native.balance(layer)
    received, ring, allgather = native.exchange_tokens(layer)
    kind = "no window" if window == 0 else f"window {window}" + (", clamped" if clamp else "")
    lines = [
        f"{count} layers with {kind}: {native.strategies[layer]}, {pairs:,} legal pairs",
        f"  busiest rank over mean {total:.3f}, step by step {by_step:.3f}",
        f"  keys received by all ranks {received:,} (ring {ring:,}, all-gather {allgather:,})",
    ]
    if native.keep != "nothing":
        low, full, _ = plan.kept[layer].shape
        lines.append(f"  each keeps {native.keep} for backward: {low / 2**20:,.1f} MiB (fp32: {full / 2**20:,.1f})")
    for step, work in enumerate(native.step_pairs(layer)):
        lines.append(f"  step {step}: legal pairs per ring rank {', '.join(f'{pairs:,}' for pairs in work)}")
    return lines

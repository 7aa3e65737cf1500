# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""
Readers of what users have today: FlashMask columns, MagiAttention ranges, BAGEL splits.

Each recovers the spans whose mask is exactly the given one, or refuses with the first key that no span explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from marble.arrays import to_integers
from marble.layout import Layout
from marble.visibility import KeyRun, layout_of_visibility

MAGI_FULL, MAGI_CAUSAL = 0, 1
_MAGI_NAMES = {"full": 0, "causal": 1, "inv_causal": 2, "bi_causal": 3, "invcausal": 2, "bicausal": 3}


def read_flashmask(startend_row_indices: Any, *, causal: bool) -> Layout:
    """
    Reads FlashMask's columns, which name the rows that must *not* see each key.

    ``startend_row_indices``: integers [tokens, bounds] (leading axes of size 1 are dropped: batch and heads). Bounds
    are LTS; or LTS, LTE when ``causal``; and LTS, UTE; or LTS, LTE, UTS, UTE when not. Raises ValueError for a mask
    that differs between heads or batches, a sliding window (give that to the model's layers), a key that no query sees,
    and whatever else spans cannot say, naming the key.
    """
    shape = np.shape(startend_row_indices)
    if len(shape) > 2 and any(size != 1 for size in shape[:-2]):
        raise ValueError(
            f"startend_row_indices: shape {list(shape)} should have one batch and one head; read one mask at a time"
        )
    rows = startend_row_indices
    for _ in shape[:-2]:
        rows = rows[0]
    columns = to_integers("startend_row_indices", rows, np.int64, dims=2)
    tokens, bounds = columns.shape
    allowed = (1, 2) if causal else (2, 4)
    if bounds not in allowed:
        raise ValueError(
            f"startend_row_indices: {bounds} bounds should be {allowed[0]} or {allowed[1]} (causal={causal})"
        )
    columns = np.clip(columns, 0, tokens)
    return layout_of_visibility(_flashmask_runs(columns, causal), tokens)


def _flashmask_runs(columns: np.ndarray, causal: bool) -> list[KeyRun]:
    """Keys in a row whose columns are alike are one run; the causal diagonal moves with the key."""
    tokens, bounds = columns.shape
    zeros, ends = np.zeros(tokens, np.int64), np.full(tokens, tokens, np.int64)
    if causal:
        lts, lte = columns[:, 0], columns[:, 1] if bounds == 2 else ends
        uts = ute = zeros
    elif bounds == 2:
        lts, lte, uts, ute = columns[:, 0], ends, zeros, columns[:, 1]
    else:
        lts, lte, uts, ute = columns.T
    keys = np.arange(tokens)
    step = np.flatnonzero((np.diff(lts) == 1) & (lts[:-1] > keys[:-1] + 1) & (lts[1:] < tokens))
    if len(step):
        key = int(step[0])
        raise ValueError(
            f"startend_row_indices: key {key} is hidden from row {lts[key]} on and key {key + 1} from one row later: a "
            f"sliding window of {lts[key] - key}; a window belongs to a layer: give it to marble.Model"
        )
    # Rows above the diagonal: hidden up to each key itself, or by bounds that stand still.
    moving = np.ones(tokens, bool) if causal else (ute == keys) & (uts <= 0)

    def bounds_of(key: int) -> list[tuple[int, int]]:
        below = (int(lts[key]), int(lte[key]))
        return [below] if moving[key] else [below, (int(uts[key]), int(ute[key]))]

    signature = np.stack([lts, lte, np.where(moving, -1, uts), np.where(moving, -1, ute)], axis=1)
    starts = np.flatnonzero(np.append(True, (np.diff(signature, axis=0) != 0).any(axis=1)))[:tokens]
    return [
        KeyRun(start, stop, bool(moving[start]), _visible(start if moving[start] else 0, bounds_of(start), tokens))
        for start, stop in pairwise([*starts.tolist(), tokens])
    ]


def _visible(first: int, hidden: list[tuple[int, int]], tokens: int) -> tuple[tuple[int, int], ...]:
    """What is left of the rows [first, tokens) without the hidden ranges."""
    intervals = []
    for low, high in sorted(hidden):
        if low < high and first < low:
            intervals.append((first, low))
        first = max(first, high) if low < high else first
    if first < tokens:
        intervals.append((first, tokens))
    return tuple(intervals)


def read_magi_ranges(
    q_ranges: Sequence[Sequence[int]],
    k_ranges: Sequence[Sequence[int]],
    attn_type_map: Sequence[int | str],
    total_tokens: int,
) -> Layout:
    """
    Reads MagiAttention's slices: queries of ``q_ranges[i]`` see keys of ``k_ranges[i]`` by ``attn_type_map[i]``.

    Types: 0 full, 1 causal, aligned at the bottom right. Types 2 and 3 (inverse and bi-causal) make windows, which
    belong to the model's layers, and are refused. Slices must not overlap. Raises ValueError naming the slice or key
    that spans cannot say.
    """
    queries = to_integers("q_ranges", q_ranges, np.int64, dims=2)
    keys = to_integers("k_ranges", k_ranges, np.int64, dims=2)
    types = [_MAGI_NAMES.get(kind.lower(), kind) if isinstance(kind, str) else int(kind) for kind in attn_type_map]
    if not len(queries) == len(keys) == len(types):
        raise ValueError(
            f"q_ranges, k_ranges, attn_type_map: lengths {len(queries)}, {len(keys)}, {len(types)} should be equal"
        )
    for i, kind in enumerate(types):
        if kind not in (MAGI_FULL, MAGI_CAUSAL):
            raise ValueError(
                f"attn_type_map[{i}]: {attn_type_map[i]!r} should be 0 (full) or 1 (causal); a window belongs to a "
                "layer: give it to marble.Model"
            )
        for name, (low, high) in (("q_ranges", queries[i]), ("k_ranges", keys[i])):
            if not 0 <= low <= high <= total_tokens:
                raise ValueError(f"{name}[{i}]: [{low}, {high}) should lie in 0..{total_tokens}")
    edges = {0, total_tokens, *queries.ravel().tolist(), *keys.ravel().tolist()}
    # A causal slice's diagonal enters and leaves its queries at keys of its own.
    for (q_low, q_high), (k_low, k_high), kind in zip(queries.tolist(), keys.tolist(), types, strict=True):
        if kind == MAGI_CAUSAL:
            edges |= {edge for edge in (q_low - q_high + k_high,) if k_low < edge < k_high}
    cuts = sorted(edges)
    runs = []
    for start, stop in pairwise(cuts):
        runs.append(_magi_run(start, stop, queries.tolist(), keys.tolist(), types))
    return layout_of_visibility(runs, total_tokens)


def _magi_run(start: int, stop: int, queries: list[list[int]], keys: list[list[int]], types: list[int | str]) -> KeyRun:
    """What the keys [start, stop), inside or outside of each slice's as a whole, are seen by."""
    moving = False
    intervals = []
    for i, ((q_low, q_high), (k_low, k_high), kind) in enumerate(zip(queries, keys, types, strict=True)):
        if not (k_low <= start and stop <= k_high) or q_low == q_high:
            continue
        low = q_low
        offset = q_high - k_high
        if kind == MAGI_CAUSAL and start + offset >= q_low:
            low = start + offset
            if offset != 0 and stop - start > 1:
                raise ValueError(
                    f"k_ranges[{i}]: its causal diagonal is {offset} off the main one; spans have that one only"
                )
            moving = moving or offset == 0
        intervals.append((low, q_high))
    intervals.sort()
    joined: list[tuple[int, int]] = []
    for low, high in intervals:
        if joined and low < joined[-1][1]:
            raise ValueError(f"k_ranges: query {low} sees key {start} through two slices")
        if joined and low == joined[-1][1] and not (moving and low == start):
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return KeyRun(start, stop, moving, tuple(joined))


def read_bagel_splits(sample_lens: Sequence[int], split_lens: Sequence[int], attn_modes: Sequence[str]) -> Layout:
    """Reads BAGEL's packed batches, see :meth:`marble.Layout.from_bagel_splits`."""
    lengths = to_integers("sample_lens", sample_lens, np.int64).tolist()
    splits = to_integers("split_lens", split_lens, np.int64).tolist()
    if len(splits) != len(attn_modes):
        raise ValueError(f"attn_modes: {len(attn_modes)} modes should match the {len(splits)} split_lens")
    samples = []
    next_split = 0
    for s, length in enumerate(lengths):
        spans = []
        filled = 0
        while filled < length and next_split < len(splits):
            mode = attn_modes[next_split]
            if mode not in ("causal", "full", "noise"):
                raise ValueError(f"attn_modes[{next_split}]: {mode!r} should be causal, full or noise")
            spans.append((mode, splits[next_split]))
            filled += splits[next_split]
            next_split += 1
        if filled != length:
            raise ValueError(f"split_lens: splits add up to {filled} where sample {s} has {length} tokens")
        samples.append(spans)
    if next_split != len(splits):
        raise ValueError(f"split_lens: {len(splits) - next_split} splits lie after the last sample")
    return Layout(samples)

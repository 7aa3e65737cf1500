# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""
Layouts from who sees each key.

A key run is a range of keys that the same rows see: some intervals of rows, of which the one that holds the keys may
begin at each key itself (the causal diagonal). Spans are guessed from the runs of each sample, then turned back into
runs; a layout is returned only when both are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from marble.layout import Layout, SpanLike

Interval = tuple[int, int]


class KeyRun(NamedTuple):
    """
    Keys [start, stop) and the ascending, disjoint intervals of rows that see them.

    When ``moving``, the interval that begins at ``start`` begins at each key instead.
    """

    start: int
    stop: int
    moving: bool
    intervals: tuple[Interval, ...]

    def own(self) -> Interval | None:
        """The interval that holds the first key."""
        return next(((low, high) for low, high in self.intervals if low <= self.start < high), None)

    def is_seen_until(self, end: int) -> bool:
        """Whether the rows from its first key up to ``end`` see it."""
        own = self.own()
        return own is not None and own[1] == end


def _normal(runs: list[KeyRun]) -> list[KeyRun]:
    """The same visibility in as few runs as can be, each as long as can be; a lone key counts as moving where it
    may.
    """
    result: list[KeyRun] = []
    for run in runs:
        if run.start == run.stop:
            continue
        own = run.own()
        if run.stop - run.start == 1:
            run = run._replace(moving=own is not None and own[0] == run.start and len(run.intervals) == 1)
        if result and not run.moving and own is not None and own[0] == run.start - 1 and _is_first_key(result[-1], run):
            run = run._replace(start=run.start - 1)
            result[-1] = result[-1]._replace(stop=run.start)
            if result[-1].start == result[-1].stop:
                result.pop()
        if result and _continues(result[-1], run):
            result[-1] = result[-1]._replace(stop=run.stop)
        else:
            result.append(run)
    return result


def _is_first_key(before: KeyRun, run: KeyRun) -> bool:
    """Whether the last key of the run before, which begins a bidirectional span, is seen as this run's keys are."""
    return before.moving and _at(before, run.start - 1) == run.intervals


def _at(run: KeyRun, key: int) -> tuple[Interval, ...]:
    """The intervals of one key of a moving run."""
    return tuple((key, high) if low == run.start else (low, high) for low, high in run.intervals)


def _continues(first: KeyRun, second: KeyRun) -> bool:
    """Whether two neighbouring runs are one."""
    if first.moving and second.moving:
        return _at(first, second.start) == second.intervals
    return not first.moving and not second.moving and first.intervals == second.intervals


def layout_of_visibility(runs: list[KeyRun], tokens: int) -> Layout:
    """
    The layout in which each key is seen by exactly these rows; ValueError names the first key of which that is not so.

    ``runs`` cover [0, tokens) in order.
    """
    given = _normal(runs)
    layout = Layout([_spans(sample, end) for sample, end in _samples(_part_mates(given), tokens)])
    for expected, got in zip(given, _normal(_visibility(layout)), strict=False):
        if expected != got:
            raise ValueError(f"key {expected.start}: seen by rows {_words(expected)}; no list of spans says that")
    return layout


def _part_mates(runs: list[KeyRun]) -> list[KeyRun]:
    """Runs in which a lone key that other spans see apart from their own, a mate of theirs, is no longer moving."""
    mates = {low for run in runs for low, high in run.intervals if high - low == 1 and not low <= run.start < high}
    result: list[KeyRun] = []
    for run in runs:
        cuts = sorted(key for key in mates if run.moving and run.start <= key < run.stop)
        start = run.start
        for key in cuts:
            if start < key:
                result.append(KeyRun(start, key, True, _at(run, start)))
            result.append(KeyRun(key, key + 1, False, _at(run, key)))
            start = key + 1
        if start < run.stop:
            result.append(run._replace(start=start, intervals=_at(run, start) if run.moving else run.intervals))
    return result


def _words(run: KeyRun) -> str:
    rows = ", ".join(f"{low}..{high - 1}" for low, high in run.intervals) or "none"
    return rows + (" (from each key on)" if run.moving and run.stop - run.start > 1 else "")


def _samples(runs: list[KeyRun], tokens: int) -> Iterator[tuple[list[KeyRun], int]]:
    """The runs of each sample, and its end: a sample is closed under who sees whom."""
    sample: list[KeyRun] = []
    end = 0
    for run in runs:
        if sample and run.start >= end:
            yield sample, end
            sample = []
        own = run.own()
        if own is None or own[1] < run.stop:
            key = run.start if own is None else own[1]
            raise ValueError(f"key {key}: does not see itself; drop padding, marble needs none")
        first = sample[0].start if sample else run.start
        if run.intervals[0][0] < first:
            raise ValueError(f"key {run.start}: seen by row {run.intervals[0][0]}, which lies in an earlier sample")
        if run.intervals[-1][1] > tokens:
            raise ValueError(f"key {run.start}: seen by row {run.intervals[-1][1] - 1} of {tokens}")
        sample.append(run)
        end = max(end, run.intervals[-1][1])
    if sample:
        yield sample, end


def _spans(runs: list[KeyRun], end: int) -> list[SpanLike]:
    """A guess at the spans of one sample."""
    numbers: dict[Interval, int] = {}  # of the set that each bidirectional span belongs to
    fates: dict[int, list[bool]] = {}  # of the members of each set: read by all later rows?
    for run in runs:
        if run.moving:
            continue
        others = [interval for interval in run.intervals if interval in numbers]
        number = numbers[others[0]] if others else len(numbers)
        numbers[(run.start, run.stop)] = number
        fates.setdefault(number, []).append(run.is_seen_until(end))
    spans: list[SpanLike] = []
    for run in runs:
        length = run.stop - run.start
        if run.moving:
            spans.append(("causal" if run.is_seen_until(end) else "branch", length))
            continue
        number = numbers[(run.start, run.stop)]
        if not all(fates[number]):
            spans.append(("noise", length, number))
        elif len(fates[number]) > 1:
            spans.append(("group", length, number))
        else:
            spans.append(("full", length))
    return spans


def _visibility(layout: Layout) -> list[KeyRun]:
    """Who sees each key of a layout."""
    runs = []
    start = 0
    for sample in layout.normalized().samples():
        edges = list(accumulate((span[1] for span in sample), initial=start))
        owns = list(pairwise(edges))
        mates: dict[object, list[Interval]] = {}
        for i, (span, own) in enumerate(zip(sample, owns, strict=True)):
            mates.setdefault(_set_of(span, i), []).append(own)
        for i, (span, own) in enumerate(zip(sample, owns, strict=True)):
            runs.append(
                KeyRun(*own, span[0] in ("causal", "branch"), _rows(span[0], own, mates[_set_of(span, i)], edges[-1]))
            )
        start = edges[-1]
    return runs


def _set_of(span: SpanLike, i: int) -> object:
    """What the spans of one set share."""
    if len(span) == 3:
        return span[0], span[2]
    return "group" if span[0] == "group" else i


def _rows(mode: str, own: Interval, mates: list[Interval], end: int) -> tuple[Interval, ...]:
    """Intervals of the rows that see a span's keys, given the spans of its set and its sample's end."""
    if mode == "branch":
        return (own,)
    if mode == "noise":
        return tuple(mates)
    earlier = [mate for mate in mates if mate[0] < own[0]] if mode == "group" else []
    return (*earlier, (own[0], end))

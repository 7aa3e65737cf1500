# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The attention layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from marble import _native


class Window(NamedTuple):
    """
    A sliding window of ``size`` tokens over the causal rule.

    ``clamp`` limits bidirectional spans to it too (Google's Gemma code does, Hugging Face's does not; they agree on
    spans of at most ``size`` tokens).
    """

    size: int
    clamp: bool = False


@dataclass(frozen=True, eq=False)
class Model:
    """
    Heads and layers that share one token order.

    ``layers`` maps a window (None: none, an int, or a :class:`Window`) to the number of attention layers that use it.
    ``order_dependent`` says that other layers (recurrent, convolution) need the given token order.
    Equal models have equal kinds of layers in the same order. Raises ValueError on impossible numbers, TypeError on
    wrong types.
    """

    heads: int
    kv_heads: int
    head_dim: int
    layers: Mapping[int | Window | None, int] = field(default_factory=lambda: {None: 1})
    order_dependent: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int):
                raise TypeError(f"{name}: {value!r} should be an integer")
            if value < 1:
                raise ValueError(f"{name}: {value} should be at least 1")
        if self.heads % self.kv_heads != 0:
            raise ValueError(f"heads: {self.heads} should be a multiple of kv_heads {self.kv_heads}")
        if not self.layers:
            raise ValueError("layers: should name at least one kind of attention layer, such as {None: 1}")
        for window, count in self.layers.items():
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"layers: count {count!r} of window {window} should be a positive integer")
            if to_window(window).size < 0:
                raise ValueError(f"layers: window {window} should not be negative")
        if len(set(self.windows)) != len(self.windows):
            raise ValueError(f"layers: {list(self.layers)} name one window twice")

    @property
    def windows(self) -> tuple[Window, ...]:
        """The kinds of layers; a size of 0 means no window."""
        return tuple(to_window(window) for window in self.layers)

    def _key(self) -> tuple[object, ...]:
        counts = tuple(self.layers.values())
        return (self.heads, self.kv_heads, self.head_dim, self.windows, counts, self.order_dependent)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def to_native(self) -> _native.Model:
        """The planner's form."""
        layers = [
            (window.size, window.clamp, count) for window, count in zip(self.windows, self.layers.values(), strict=True)
        ]
        return _native.Model(self.heads, self.kv_heads, self.head_dim, layers, self.order_dependent)


def to_window(window: int | Window | None) -> Window:
    """The window as a value; TypeError on anything else."""
    if isinstance(window, Window):
        return window
    if window is None:
        return Window(0)
    if isinstance(window, int) and not isinstance(window, bool):
        return Window(window)
    raise TypeError(f"window: {window!r} should be None, an integer or a marble.Window")

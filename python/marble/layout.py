# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Layouts: packed sequences as samples made of spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marble import _native
from marble.arrays import to_integers
from marble.model import Model, Window

if TYPE_CHECKING:
    import torch

MODES = ("causal", "full", "noise", "group", "branch")
NO_ID = -1

SpanLike = tuple[str, int] | tuple[str, int, int | None]


def _to_span(span: Any, where: str) -> tuple[str, int, int]:
    if not isinstance(span, (tuple, list)) or len(span) not in (2, 3):
        raise TypeError(f"{where}: {span!r} should be (mode, length) or (mode, length, id)")
    mode, length, *rest = span
    if mode not in MODES:
        raise ValueError(f"{where}: mode {mode!r} should be one of {', '.join(MODES)}")
    number = rest[0] if rest and rest[0] is not None else NO_ID
    for name, value in (("length", length), ("id", number)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise TypeError(f"{where}: {name} {value!r} should be an integer")
    return str(mode), int(length), int(number)


class Layout:
    """
    A packed sequence: a list of samples, each a list of spans ``(mode, length[, id])``. Immutable.

    Modes: ``causal`` (left to right, read by later spans of the sample), ``full`` (bidirectional, read by later spans),
    ``noise`` (bidirectional within its set, read by nobody else), ``group`` (bidirectional over all group spans of its
    set, read by later spans), ``branch`` (left to right, read by nobody else). The id joins the noise or group spans of
    one sample into a set; without one each noise span is a set and all group spans of the sample are one. Empty samples
    and spans are legal.

    Raises ValueError on an unknown mode or a bad length or id, TypeError on anything that is not a list of span lists.
    """

    __slots__ = ("_native",)

    def __init__(self, samples: Iterable[Iterable[SpanLike]]) -> None:
        checked = []
        for s, sample in enumerate(samples):
            if isinstance(sample, (str, int)) or (isinstance(sample, tuple) and sample and isinstance(sample[0], str)):
                raise TypeError(f"samples[{s}]: {sample!r} should be a list of spans; a layout is a list of samples")
            checked.append([_to_span(span, f"samples[{s}][{i}]") for i, span in enumerate(sample)])
        self._native = _native.Layout.from_samples(checked)

    @classmethod
    def _wrap(cls, native: _native.Layout) -> Layout:
        layout = cls.__new__(cls)
        layout._native = native
        return layout

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: torch.Tensor | Sequence[int]) -> Layout:
        """One causal sample per ``[cu_seqlens[i], cu_seqlens[i + 1])``, as flash-attn's varlen calls take them."""
        return cls._wrap(_native.Layout.from_cu_seqlens(to_integers("cu_seqlens", cu_seqlens, np.int64)))

    @classmethod
    def from_tracks(
        cls,
        sample: torch.Tensor | Sequence[int],
        segment: torch.Tensor | Sequence[int] | None = None,
        noise: torch.Tensor | Sequence[int] | None = None,
    ) -> Layout:
        """
        Run-length encodes per-token integers, each of shape [tokens].

        ``sample`` ascends; ``segment`` is shared by the tokens of one bidirectional set, -1 outside (default: none);
        ``noise`` is >= 0 for tokens that only their own noise or branch set reads (default: none). Raises ValueError,
        naming the token, where the tracks contradict each other or say what spans cannot.
        """
        samples = to_integers("sample", sample, np.int32)
        absent = np.full_like(samples, -1)
        return cls._wrap(
            _native.Layout.from_tracks(
                samples,
                absent if segment is None else to_integers("segment", segment, np.int32),
                absent if noise is None else to_integers("noise", noise, np.int32),
                np.arange(len(samples), dtype=np.int64),
            )
        )

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Reads the JSON form of docs/layouts.md, which the command line writes."""
        return cls._wrap(_native.Layout.from_json(text))

    @classmethod
    def from_flashmask(cls, startend_row_indices: torch.Tensor | Sequence[Any], *, causal: bool) -> Layout:
        """Reads FlashMask's start/end row columns, see :func:`marble.readers.read_flashmask`."""
        from marble.readers import read_flashmask

        return read_flashmask(startend_row_indices, causal=causal)

    @classmethod
    def from_magi_ranges(
        cls,
        q_ranges: Sequence[Sequence[int]],
        k_ranges: Sequence[Sequence[int]],
        attn_type_map: Sequence[int | str],
        total_tokens: int,
    ) -> Layout:
        """Reads MagiAttention's lists of query and key ranges, see :func:`marble.readers.read_magi_ranges`."""
        from marble.readers import read_magi_ranges

        return read_magi_ranges(q_ranges, k_ranges, attn_type_map, total_tokens)

    @classmethod
    def from_bagel_splits(
        cls, sample_lens: Sequence[int], split_lens: Sequence[int], attn_modes: Sequence[str]
    ) -> Layout:
        """
        Reads BAGEL's packed batches: lengths of samples, and length and mode of each split over all samples.

        Modes are ``causal``, ``full`` and ``noise``. Raises ValueError when splits do not add up to the samples.
        """
        from marble.readers import read_bagel_splits

        return read_bagel_splits(sample_lens, split_lens, attn_modes)

    @classmethod
    def generate(cls, name: str, tokens: int, seed: int = 0, **parameters: object) -> Layout:
        """A seeded pack of exactly ``tokens`` tokens like one of the models' training data; see :func:`generators`."""
        text = {key: str(value) for key, value in parameters.items()}
        return cls._wrap(_native.generate(name, tokens, seed, text))

    @property
    def num_tokens(self) -> int:
        """Tokens in all samples."""
        return self._native.num_tokens

    @property
    def num_samples(self) -> int:
        """Samples, empty ones included."""
        return self._native.num_samples

    @property
    def digest(self) -> int:
        """64-bit value digest: equal layouts have equal digests, on every platform."""
        return self._native.digest

    def samples(self) -> list[list[tuple[str, int] | tuple[str, int, int]]]:
        """The span lists that the constructor takes."""
        return [
            [(mode, length) if number == NO_ID else (mode, length, number) for mode, length, number in sample]
            for sample in self._native.samples()
        ]

    def tracks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Sample, segment, noise (int32) and position (int64) of each token, each of shape [tokens]."""
        return self._native.tracks()

    def positions_in_sample(self) -> np.ndarray:
        """Index of each token within its sample, int64 [tokens]: the usual RoPE positions."""
        lengths = np.array([sum(span[1] for span in sample) for sample in self._native.samples()], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        return np.arange(self.num_tokens, dtype=np.int64) - np.repeat(starts, lengths)

    def legal_pairs(self, window: int | None = None, *, clamp: bool = False) -> int:
        """Exact number of (query, key) pairs that the mask allows."""
        return self._native.legal_pairs(window or 0, clamp)

    def normalized(self) -> Layout:
        """The one layout among those of equal masks that :meth:`from_tracks` returns."""
        return self._wrap(self._native.normalized())

    def to_json(self) -> str:
        """The JSON form of docs/layouts.md."""
        return self._native.to_json()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._native.equals(other._native)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        return f"Layout({self.num_samples} samples, {self.num_tokens} tokens)"


@dataclass(frozen=True)
class GeneratedModel:
    """A layout generator and the attention of the model whose packs it makes."""

    name: str
    title: str
    description: str
    model: Model
    softmax_scale: float


def _to_generated(info: _native.GeneratorInfo) -> GeneratedModel:
    layers = {window or None: count for window, count in info.layers}
    model = Model(
        heads=info.heads,
        kv_heads=info.kv_heads,
        head_dim=info.head_dim,
        layers={Window(window) if window else None: count for window, count in layers.items()},
        order_dependent=info.order_dependent,
    )
    return GeneratedModel(info.name, info.model, info.description, model, info.softmax_scale)


def generators() -> list[GeneratedModel]:
    """All layout generators."""
    return [_to_generated(info) for info in _native.generators()]


def generator(name: str) -> GeneratedModel:
    """The generator of that name; ValueError lists the names."""
    return _to_generated(_native.generator(name))

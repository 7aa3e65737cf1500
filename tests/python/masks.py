# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The mask rule by brute force, and layouts to try it on."""

import marble
import torch
from hypothesis import strategies as st

MODES = ("causal", "full", "noise", "group", "branch")


def dense_mask(layout: marble.Layout, window: int = 0, clamp: bool = False) -> torch.Tensor:
    """bool [queries, keys], written from the paper's rule and nothing else."""
    sample, segment, noise, position = (torch.from_numpy(track) for track in layout.tracks())
    distance = position[:, None] - position[None, :]
    in_window = distance < window if window else torch.ones_like(distance, dtype=torch.bool)
    same_span = (segment[:, None] == segment) & (segment[:, None] >= 0)
    if clamp:
        same_span &= in_window & (-distance < window)
    visible = (noise[None, :] < 0) | (noise[:, None] == noise)
    return (sample[:, None] == sample) & visible & ((distance >= 0) & in_window | same_span)


@st.composite
def samples(draw, max_spans: int = 5, max_length: int = 24):
    """Samples of any modes; ids join some noise and group spans."""
    spans = []
    for _ in range(draw(st.integers(0, max_spans))):
        mode = draw(st.sampled_from(MODES))
        length = draw(st.integers(0, max_length))
        number = draw(st.sampled_from([None, 0, 1])) if mode in ("noise", "group") else None
        spans.append((mode, length) if number is None else (mode, length, number))
    return spans


def layouts(max_samples: int = 4, **limits):
    """Layouts with at least one token."""
    packs = st.lists(samples(**limits), min_size=1, max_size=max_samples)
    return packs.map(marble.Layout).filter(lambda layout: layout.num_tokens > 0)

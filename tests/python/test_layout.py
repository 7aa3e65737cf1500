# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Layouts and their readers."""

import itertools
import pickle

import marble
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from masks import dense_mask, layouts


@given(layouts())
def test_samples_json_and_pickle_return_the_layout(layout):
    assert marble.Layout(layout.samples()) == layout
    assert marble.Layout.from_json(layout.to_json()) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert hash(marble.Layout(layout.samples())) == hash(layout)


@given(layouts())
def test_tracks_return_the_mask(layout):
    sample, segment, noise, _ = layout.tracks()
    assert marble.Layout.from_tracks(sample, torch.from_numpy(segment), noise.tolist()) == layout.normalized()


@given(layouts())
def test_legal_pairs_are_those_of_the_mask(layout):
    assert layout.legal_pairs() == int(dense_mask(layout).sum())
    assert layout.legal_pairs(5) == int(dense_mask(layout, 5).sum())


def test_cu_seqlens_are_causal_samples():
    layout = marble.Layout.from_cu_seqlens(torch.tensor([0, 5, 5, 12], dtype=torch.int32))
    assert layout.samples() == [[("causal", 5)], [("causal", 0)], [("causal", 7)]]
    assert layout.positions_in_sample().tolist() == [*range(5), *range(7)]


def test_generators_make_packs_of_any_size():
    names = [info.name for info in marble.generators()]
    assert len(names) == 12
    info = marble.generator("gemma3-docs")
    assert info.model.layers == {None: 10, marble.Window(1024): 52}
    layout = marble.Layout.generate("gemma3-docs", 30_001, seed=3)
    assert layout.num_tokens == 30_001
    assert layout == marble.Layout.generate("gemma3-docs", 30_001, seed=3)
    assert layout != marble.Layout.generate("gemma3-docs", 30_001, seed=4)


def flashmask_columns(mask: torch.Tensor) -> torch.Tensor | None:
    """FlashMask's four bounds of each key, None when it cannot say the mask."""
    tokens = len(mask)
    columns = []
    for key in range(tokens):
        hidden = (~mask[:, key]).to(torch.int8)
        edges = torch.diff(hidden, prepend=torch.zeros(1), append=torch.zeros(1)).nonzero().flatten().tolist()
        ranges = list(zip(edges[::2], edges[1::2], strict=True))
        if len(ranges) > 2:
            return None
        below = [r for r in ranges if r[0] > key] or [(tokens, tokens)]
        above = [r for r in ranges if r[0] <= key] or [(0, 0)]
        if len(below) > 1 or len(above) > 1:
            return None
        columns.append((*below[0], *above[0]))
    return torch.tensor(columns)


@given(layouts(max_samples=3, max_spans=4, max_length=7))
def test_flashmask_columns_return_the_mask(layout):
    mask = dense_mask(layout)
    columns = flashmask_columns(mask)
    assume(columns is not None)
    assert torch.equal(dense_mask(marble.Layout.from_flashmask(columns[None, None], causal=False)), mask)
    if (columns[:, 1] == len(mask)).all() and (columns[:, 2] == 0).all():
        short = columns[:, [0, 3]]
        assert torch.equal(dense_mask(marble.Layout.from_flashmask(short, causal=False)), mask)
    if (columns[:, 3] == torch.arange(len(mask))).all() and (columns[:, 2] == 0).all():
        assert torch.equal(dense_mask(marble.Layout.from_flashmask(columns[:, :2], causal=True)), mask)
        if (columns[:, 1] == len(mask)).all():
            assert torch.equal(dense_mask(marble.Layout.from_flashmask(columns[:, :1], causal=True)), mask)


@settings(max_examples=200)
@given(st.integers(1, 5), st.data())
def test_flashmask_reads_exactly_or_refuses(tokens, data):
    columns = [
        sorted(data.draw(st.tuples(st.integers(key, tokens), st.integers(key, tokens))))
        + sorted(data.draw(st.tuples(st.integers(0, key), st.integers(0, key))))
        for key in range(tokens)
    ]
    mask = torch.ones(tokens, tokens, dtype=torch.bool)
    for key, (a, b, c, d) in enumerate(columns):
        mask[a:b, key] = False
        mask[c:d, key] = False
    try:
        layout = marble.Layout.from_flashmask(torch.tensor(columns), causal=False)
    except ValueError:
        return
    assert torch.equal(dense_mask(layout), mask)


def test_flashmask_refuses_windows_padding_and_heads_by_name():
    window = torch.tensor([[min(key + 4, 20)] for key in range(20)])
    with pytest.raises(ValueError, match="sliding window of 4; a window belongs to a layer"):
        marble.Layout.from_flashmask(window, causal=True)
    padded = torch.tensor([[6]] * 6 + [[6]] * 2)
    with pytest.raises(ValueError, match="key 6: does not see itself; drop padding"):
        marble.Layout.from_flashmask(padded, causal=True)
    with pytest.raises(ValueError, match=r"\[1, 2, 8, 1\] should have one batch and one head"):
        marble.Layout.from_flashmask(torch.zeros(1, 2, 8, 1, dtype=torch.int32), causal=True)
    with pytest.raises(ValueError, match="4 bounds should be 1 or 2"):
        marble.Layout.from_flashmask(torch.zeros(8, 4, dtype=torch.int32), causal=True)


def set_of(span, i):
    """What the spans of one set share."""
    mode, number = span[0], span[2] if len(span) == 3 else None
    return (mode, number) if number is not None or mode == "group" else i


def magi_slices(layout: marble.Layout):
    """Slices of a layout, span by span."""
    queries, keys, kinds = [], [], []

    def add(q, k, kind):
        if q[0] < q[1] and k[0] < k[1]:
            queries.append(q)
            keys.append(k)
            kinds.append(kind)

    start = 0
    for sample in layout.normalized().samples():
        edges = np.cumsum([start] + [span[1] for span in sample]).tolist()
        owns = list(itertools.pairwise(edges))
        for i, span in enumerate(sample):
            mode = span[0]
            mates = [own for j, own in enumerate(owns) if set_of(sample[j], j) == set_of(span, i)]
            if mode in ("causal", "branch"):
                add(owns[i], owns[i], "causal")
            for mate in mates if mode in ("noise", "group", "full") else []:
                if mode == "noise" or mate[0] <= owns[i][0]:
                    add(mate, owns[i], "full")
            if mode in ("causal", "full", "group"):
                add((owns[i][1], edges[-1]), owns[i], 0)
        start = edges[-1]
    return queries, keys, kinds


@settings(max_examples=100)
@given(layouts(max_samples=3, max_spans=5, max_length=7))
@example(marble.Layout([[("group", 1, 0), ("causal", 1), ("group", 1, 0)]]))
@example(
    marble.Layout([[("causal", 2), ("group", 1, 0), ("causal", 2), ("group", 3, 0), ("noise", 1), ("group", 1, 0)]])
)
@example(marble.Layout([[("noise", 1, 0), ("causal", 1), ("noise", 1, 0), ("branch", 1), ("full", 1), ("branch", 1)]]))
def test_magi_ranges_return_the_mask(layout):
    read = marble.Layout.from_magi_ranges(*magi_slices(layout), layout.num_tokens)
    assert torch.equal(dense_mask(read), dense_mask(layout))


def test_magi_refuses_windows_and_foreign_diagonals_by_name():
    with pytest.raises(ValueError, match=r"attn_type_map\[0\]: 3 should be 0 \(full\) or 1"):
        marble.Layout.from_magi_ranges([[0, 8]], [[0, 8]], [3], 8)
    with pytest.raises(ValueError, match="its causal diagonal is 2 off the main one"):
        marble.Layout.from_magi_ranges([[0, 8]], [[0, 6]], [1], 8)
    with pytest.raises(ValueError, match="sees key 0 through two slices"):
        marble.Layout.from_magi_ranges([[0, 8], [0, 4]], [[0, 8], [0, 8]], [0, 0], 8)
    with pytest.raises(ValueError, match=r"q_ranges\[0\]: \[0, 9\) should lie in 0..8"):
        marble.Layout.from_magi_ranges([[0, 9]], [[0, 8]], [0], 8)


def test_bagel_splits_are_spans():
    layout = marble.Layout.from_bagel_splits([9, 6], [4, 5, 2, 4], ["causal", "noise", "causal", "full"])
    assert layout.samples() == [[("causal", 4), ("noise", 5)], [("causal", 2), ("full", 4)]]
    with pytest.raises(ValueError, match="add up to 9 where sample 0 has 8 tokens"):
        marble.Layout.from_bagel_splits([8], [4, 5], ["causal", "noise"])
    with pytest.raises(ValueError, match=r"attn_modes\[1\]: 'group' should be causal, full or noise"):
        marble.Layout.from_bagel_splits([9], [4, 5], ["causal", "group"])


@pytest.mark.parametrize(
    ("samples", "error", "words"),
    [
        ([("causal", 3)], TypeError, "should be a list of spans; a layout is a list of samples"),
        ([[("casual", 3)]], ValueError, "mode 'casual' should be one of causal, full"),
        ([[("causal", 3.0)]], TypeError, "length 3.0 should be an integer"),
        ([[("causal",)]], TypeError, r"should be \(mode, length\)"),
        ([[("causal", -1)]], ValueError, "-1"),
        ([[("causal", 3, 2)]], ValueError, "id"),
    ],
)
def test_bad_spans_are_refused_by_name(samples, error, words):
    with pytest.raises(error, match=words):
        marble.Layout(samples)


def test_bad_tracks_are_refused_by_name():
    with pytest.raises(TypeError, match="sample: float"):
        marble.Layout.from_tracks([0.0, 1.0])
    with pytest.raises(ValueError, match=r"cu_seqlens: shape \[1, 2\]"):
        marble.Layout.from_cu_seqlens(torch.tensor([[0, 5]]))
    with pytest.raises(ValueError):
        marble.Layout.from_tracks([0, 1, 0])

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""A case of the two-GPU benchmark: its random tensors, and the exact attention that every system is held to."""

import dataclasses
import json

import torch


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    layout: str  # a generator's name; "causal" is one causal span
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    window: int = 0

    @property
    def layout_text(self):
        if self.layout != "causal":
            return self.layout
        return json.dumps({"marble_layout": 1, "samples": [[["causal", self.tokens]]]})

    def smaller(self, tokens):
        return dataclasses.replace(self, tokens=min(tokens, self.tokens))

    def flops(self, pairs, forward_only=False):
        return (4 if forward_only else 14) * self.head_dim * self.heads * pairs


def random_tensors(case, seed=0):
    """q, k, v, dout of the whole pack, [tokens, heads, head_dim], the same on every rank."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(heads):
        shape = (case.tokens, heads, case.head_dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    return draw(case.heads), draw(case.kv_heads), draw(case.kv_heads), draw(case.heads)


def legal(tracks, window, i, j):
    """MARBLE's mask rule, for FlexAttention and for the reference."""
    sample, segment, noise = tracks
    causal = (i >= j) & ((i - j < window) if window else (i >= 0))
    same_span = (segment[i] == segment[j]) & (segment[i] >= 0)
    return (causal | same_span) & ((noise[j] < 0) | (noise[i] == noise[j])) & (sample[i] == sample[j])


class Reference:
    """Attention of the first key head and its query heads, at sampled rows and keys of the whole pack.

    fp64, but for what a key's gradient needs of every query, its LSE and delta, which are made in fp32.
    """

    SAMPLES = 512
    CHUNK = 2048

    def __init__(self, case, tensors, tracks, seed=1):
        self.group = case.heads // case.kv_heads
        self.scale = case.head_dim**-0.5
        q, k, v, dout = tensors
        self.q, self.dout = (x[:, : self.group].transpose(0, 1) for x in (q, dout))  # [heads, tokens, head_dim]
        self.k, self.v = k[:, 0], v[:, 0]
        self.legal = lambda i, j: legal(tracks, case.window, i, j)
        self.tokens = case.tokens
        generator = torch.Generator("cuda").manual_seed(seed)

        def draw():
            return torch.randperm(case.tokens, device="cuda", generator=generator)[: self.SAMPLES].sort().values

        self.rows, self.keys = draw(), draw()
        self.add_rows()
        self.add_keys(*self.row_sums())

    def add_rows(self):
        everything = torch.arange(self.tokens, device="cuda")
        mask = self.legal(self.rows[:, None], everything[None, :])
        key, value = self.k.double(), self.v.double()
        self.out, self.dq = (torch.empty(self.group, len(self.rows), key.shape[1], device="cuda", dtype=torch.float64)
                             for _ in range(2))  # fmt: skip
        for h in range(self.group):
            scores = self.q[h, self.rows].double() @ key.T * self.scale
            p = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            dp = self.dout[h, self.rows].double() @ value.T
            self.out[h] = p @ value
            self.dq[h] = p * (dp - (dp * p).sum(-1, keepdim=True)) @ key * self.scale

    def row_sums(self):
        """LSE and delta of every query, [heads, tokens]."""
        lse, delta = torch.empty(2, self.group, self.tokens, device="cuda")
        key, value, everything = self.k.float(), self.v.float(), torch.arange(self.tokens, device="cuda")
        for begin in range(0, self.tokens, self.CHUNK):
            rows = everything[begin : begin + self.CHUNK]
            mask = self.legal(rows[:, None], everything[None, :])
            for h in range(self.group):
                scores = (self.q[h, rows].float() @ key.T).mul_(self.scale).masked_fill_(~mask, -torch.inf)
                lse[h, rows] = scores.logsumexp(-1)
                out = scores.sub_(lse[h, rows, None]).exp_() @ value
                delta[h, rows] = (out * self.dout[h, rows].float()).sum(-1)
        return lse, delta

    def add_keys(self, lse, delta):
        everything = torch.arange(self.tokens, device="cuda")
        mask = self.legal(everything[:, None], self.keys[None, :])
        key, value = self.k[self.keys].double(), self.v[self.keys].double()
        self.dk, self.dv = torch.zeros_like(key), torch.zeros_like(value)
        for h in range(self.group):
            query, dout = self.q[h].double(), self.dout[h].double()
            p = (query @ key.T * self.scale - lse[h, :, None]).exp().masked_fill(~mask, 0.0)
            self.dv += p.T @ dout
            self.dk += (p * (dout @ value.T - delta[h, :, None])).T @ query * self.scale

    def errors(self, results, positions, everywhere):
        """Relative Frobenius errors of out, dq, dk, dv; `results` are this rank's rows, at `positions`. `everywhere`
        sums over ranks."""
        here = torch.full((self.tokens,), -1, device="cuda", dtype=torch.int64)
        here[positions] = torch.arange(len(positions), device="cuda")
        errors = []
        for tensor, truth, sample in zip(
            results,
            (self.out.transpose(0, 1), self.dq.transpose(0, 1), self.dk[:, None], self.dv[:, None]),
            (self.rows, self.rows, self.keys, self.keys),
        ):
            owned = here[sample] >= 0
            mine, truth = tensor[here[sample[owned]], : truth.shape[1]].double(), truth[owned]
            sums = everywhere(torch.stack([(mine - truth).square().sum(), truth.square().sum()]))
            errors.append(float((sums[0] / sums[1]).sqrt()))
        return errors

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Cases of the benchmark across GPUs: their random tensors, and the exact attention that every system is held to."""

import dataclasses
import json

import torch
import torch.distributed as dist


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    layout: str  # a generator's name; "causal" is one causal span
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    window: int = 0
    seed: int = 0  # of the layout

    @property
    def keeps_order(self):
        """Whether the model needs the given token order, so that no placement but contiguous will do."""
        return self.layout.startswith("qwen38")

    @property
    def layout_text(self):
        if self.layout != "causal":
            return self.layout
        return json.dumps({"marble_layout": 1, "samples": [[["causal", self.tokens]]]})

    def smaller(self, tokens):
        return dataclasses.replace(self, tokens=min(tokens, self.tokens))

    def flops(self, pairs, forward_only=False):
        return (4 if forward_only else 14) * self.head_dim * self.heads * pairs


# Those of docs/across-gpus.md.
CASES = [
    Case("documents 128k", "qwen3vl-docs", 131072, 32, 4),
    Case("window 1024, 128k", "gemma3-docs", 131072, 32, 16, window=1024),
    Case("noise 128k", "bagel-mix", 131072, 28, 4),
    Case("groups 128k", "molmo2-sft", 131072, 32, 8),
    Case("causal 64k 32/4", "causal", 65536, 32, 4),
    Case("causal 64k 32/32", "causal", 65536, 32, 32),
    Case("causal 128k 32/4", "causal", 131072, 32, 4),
    Case("causal 256k 32/4", "causal", 262144, 32, 4),
]

# Heads of the models; Gemma's layers with a window, which are five of six.
MODELS = {
    "qwen3vl": (32, 4, 128, 0),
    "qwen38": (24, 4, 256, 0),
    "molmo2": (32, 8, 128, 0),
    "gemma3": (32, 16, 128, 1024),
    "bagel": (28, 4, 128, 0),
}
GENERATORS = (
    *("qwen3vl-docs", "qwen3vl-video", "qwen38-docs", "qwen38-video", "molmo2-video", "molmo2-images", "molmo2-sft"),
    *("gemma3-docs", "gemma3-frames", "bagel-mix", "bagel-longvideo", "bagel-edit"),
)


def generator_case(name, tokens, seed=0):
    return Case(f"{name} {tokens // 1024}k", name, tokens, *MODELS[name.split("-")[0]], seed=seed)


def random_tensors(case, seed=0):
    """q, k, v, dout of the whole pack, [tokens, heads, head_dim], the same on every rank."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(heads):
        shape = (case.tokens, heads, case.head_dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)

    return draw(case.heads), draw(case.kv_heads), draw(case.kv_heads), draw(case.heads)


def legal(queries, keys, window, i, j):
    """MARBLE's mask rule, for FlexAttention and for the reference: whether query i sees key j, by their tracks
    (position, sample, segment, noise)."""
    position, sample, segment, noise = queries
    key_position, key_sample, key_segment, key_noise = keys
    seen = position[i] >= key_position[j]
    if window:
        seen = seen & (position[i] - key_position[j] < window)
    same_span = (segment[i] == key_segment[j]) & (segment[i] >= 0)
    return (seen | same_span) & ((key_noise[j] < 0) | (noise[i] == key_noise[j])) & (sample[i] == key_sample[j])


class Reference:
    """Attention of the first key head and its query heads, at sampled rows and keys of the whole pack.

    fp64, but for what a key's gradient needs of every query, its LSE and delta, which are made in fp32, each rank its
    share. Collective.
    """

    SAMPLES = 512
    CHUNK = 2048

    def __init__(self, case, tensors, tracks, seed=1):
        self.group = case.heads // case.kv_heads
        self.scale = case.head_dim**-0.5
        q, k, v, dout = tensors
        self.q, self.dout = (x[:, : self.group].transpose(0, 1) for x in (q, dout))  # [heads, tokens, head_dim]
        self.k, self.v = k[:, 0], v[:, 0]
        self.legal = lambda i, j: legal(tracks, tracks, case.window, i, j)
        self.sample = tracks[1]
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
        sums = torch.zeros(2, self.group, self.tokens, device="cuda")
        lse, delta = sums
        everything = torch.arange(self.tokens, device="cuda")
        for begin in range(self.CHUNK * dist.get_rank(), self.tokens, self.CHUNK * dist.get_world_size()):
            rows = everything[begin : begin + self.CHUNK]
            keys = everything[self.samples_of(rows)]
            mask = self.legal(rows[:, None], keys[None, :])
            key, value = self.k[keys].float(), self.v[keys].float()
            for h in range(self.group):
                scores = (self.q[h, rows].float() @ key.T).mul_(self.scale).masked_fill_(~mask, -torch.inf)
                lse[h, rows] = scores.logsumexp(-1)
                out = scores.sub_(lse[h, rows, None]).exp_() @ value
                delta[h, rows] = (out * self.dout[h, rows].float()).sum(-1)
        dist.all_reduce(sums)
        return lse, delta

    def samples_of(self, rows):
        """The tokens of the samples that consecutive rows belong to, which are all that they can see."""
        ends = self.sample[rows[[0, -1]]].contiguous()
        begin = torch.searchsorted(self.sample, ends[:1])
        end = torch.searchsorted(self.sample, ends[1:], right=True)
        return slice(int(begin), int(end))

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

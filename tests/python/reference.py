# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Dense masked attention in fp64 with PyTorch's own operators, and comparison with it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def dense_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float = 0.0):
    """Output [tokens, heads, dim] and LSE [tokens, heads] in fp64; rows without a key give 0 and -inf."""
    q, k, v = q.double(), k.double(), v.double()
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0).unsqueeze(-1))
    return torch.einsum("hqk,khd->qhd", weights, v), lse.T


def torch_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Output [tokens, heads, dim] of PyTorch's own attention, in the inputs' dtype; rows without a key give 0."""
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    seen = mask.any(1)
    out = F.scaled_dot_product_attention(*heads, attn_mask=mask | ~seen[:, None], scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1) * seen[:, None, None]


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of the expectation."""
    norm = expected.double().norm().item()
    error = (value.double() - expected.double()).norm().item()
    return error / norm if norm else error

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""How far output and gradients are from fp64 on one GPU: MARBLE's, its peers' on the same input, and those of eight
ring steps.

    gpu_errors.py --lib libmarble_gpu_bench.so [--out rows.jsonl] [--quick]

Errors are relative, in the Frobenius norm, against dense fp64 attention of the same bf16 tensors; every result is taken
in bf16, as a model gets it. `ratio` is MARBLE's error over the peer's; in ring rows, that of eight ranks, who share the
GPU and carry fp32 state from step to step, over that of one rank in one call.
"""

import argparse

import torch
from gpu_attention import (
    CAUSAL,
    FULL,
    Case,
    Marble,
    about,
    add_common_arguments,
    dense,
    differentiated,
    packed,
    peers,
    write_rows,
)

TENSORS = ("out", "dq", "dk", "dv")
HEADS = [("GQA", 8, 2), ("MHA", 4, 4)]
RING = 8


def reference(causal, q, k, v, dout):
    """Output and gradients in fp64, one query head at a time."""
    q, k, v, dout = (x.detach()[0].double() for x in (q, k, v, dout))
    out, dq, dk, dv = torch.empty_like(q), torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    tokens, dim = q.shape[1:]
    group = q.shape[0] // k.shape[0]
    for head in range(q.shape[0]):
        key_head = head // group
        scores = q[head] @ k[key_head].T * dim**-0.5
        if causal:
            scores.masked_fill_(torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
        weights = torch.softmax(scores, -1)
        out[head] = weights @ v[key_head]
        dv[key_head] += weights.T @ dout[head]
        delta = (out[head] * dout[head]).sum(-1, keepdim=True)
        score_gradients = weights * (dout[head] @ v[key_head].T - delta) * dim**-0.5
        dq[head] = score_gradients @ k[key_head]
        dk[key_head] += score_gradients.T @ q[head]
    return [x[None] for x in (out, dq, dk, dv)]


def peer_rows(marble, causal, tokens, label, heads, kv_heads, dim):
    samples = dense(tokens, CAUSAL if causal else FULL)
    q, k, v, dout = (
        torch.randn(1, h, tokens, dim, device="cuda", dtype=torch.bfloat16) for h in (heads, kv_heads, kv_heads, heads)
    )
    case = Case(marble, samples, 0, heads, kv_heads, dim, (q, k, v, dout))
    case.forward()
    case.backward()
    exact = [case.placed(x) for x in reference(causal, q, k, v, dout)]

    def errors(results):
        return [float((mine.double() - x).norm() / x.norm()) for mine, x in zip(results, exact)]

    ours = errors([case.out, case.dq, case.dk.bfloat16(), case.dv.bfloat16()])
    leaves = [x.requires_grad_() for x in (q, k, v)]
    rows = []
    for peer, call in peers(samples, 0, tokens, q, k, v)[0].items():
        backward, _ = differentiated(call, leaves, dout)
        theirs = errors([case.placed(x) for x in (call().detach(), *backward())])
        for tensor, mine, other in zip(TENSORS, ours, theirs):
            rows.append(
                {
                    "case": f"{'causal' if causal else 'dense'} {tokens // 1024}k",
                    "heads": heads,
                    "kv_heads": kv_heads,
                    "head_dim": dim,
                    "sharing": label,
                    "tensor": tensor,
                    "against": peer,
                    "error": mine,
                    "peer_error": other,
                    "ratio": round(mine / other, 4),
                }
            )
    case.close()
    return rows


def ring_rows(marble, name, samples, label, heads, kv_heads, dim):
    ring, one = marble.ring_errors(samples, 0, heads, kv_heads, dim, RING)
    return [
        {
            "case": name,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": dim,
            "sharing": label,
            "tensor": tensor,
            "against": "one call",
            "ring": RING,
            "error": mine,
            "peer_error": other,
            "ratio": round(mine / other, 4),
        }
        for tensor, mine, other in zip(TENSORS, ring, one)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    arguments = parser.parse_args()
    tokens = 4096 if arguments.quick else 8192
    marble = Marble(arguments.lib)
    torch.manual_seed(0)
    rows = []

    def keep(found):
        rows.extend(found)
        for row in found:
            print(
                f"{row['case']:14s} {row['sharing']} d{row['head_dim']:<4d} {row['tensor']:4s} {row['error']:.3e} "
                f"against {row['against']:9s} {row['peer_error']:.3e}  x{row['ratio']:.3f}",
                flush=True,
            )

    for label, heads, kv_heads in HEADS:
        for dim in (64, 128, 256):
            for causal in (False, True):
                keep(peer_rows(marble, causal, tokens, label, heads, kv_heads, dim))
        for name, samples in (
            (f"causal {tokens // 1024}k", dense(tokens, CAUSAL)),
            (f"documents {tokens // 1024}k", packed(tokens, tokens // 4, FULL)),
        ):
            keep(ring_rows(marble, name, samples, label, heads, kv_heads, 128))
    write_rows(arguments, [{**row, **about(arguments)} for row in rows])


if __name__ == "__main__":
    main()

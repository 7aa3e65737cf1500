#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Attention kernels on one GPU beside their peers, on the same random data and in one run.

    gpu_attention.py --lib libmarble_gpu_bench.so [--out rows.jsonl] [--quick]

Each case times MARBLE, torch's SDPA (cuDNN and flash; dense and causal cases) and compiled FlexAttention with a
prebuilt block mask (packed cases), interleaved call by call; figures are medians of device events. TFLOP/s count legal
pairs only: 4 * head_dim per pair and query head, 10 * head_dim backward. Outputs and gradients are compared with each
other before anything is timed.
"""

import argparse
import ctypes
import datetime
import json
import pathlib
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CAUSAL, FULL, NOISE = 0, 1, 2  # marble::Mode
HEADS = {64: (16, 16), 128: (32, 4), 256: (24, 4)}


def dense(tokens, mode):
    return [[(mode, tokens)]]


def packed(tokens, document, mode, seed=0):
    """Samples of about `document` tokens: text of 64 to 512 and bidirectional spans of 256 to 1024, in turn; with
    `mode` noise every second span is one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    samples, used, spans = [], 0, 0
    while used < tokens:
        left = min(tokens - used, draw(document // 2, document * 2))
        used += left
        sample = []
        while left > 0:
            for kind, low, high in ((CAUSAL, 64, 512), (mode, 256, 1024)):
                length = min(draw(low, high), left)
                if kind != CAUSAL:
                    kind = NOISE if mode == NOISE and spans % 2 == 0 else FULL
                    spans += 1
                if length > 0:
                    sample.append((kind, length))
                left -= length
        samples.append(sample)
    return samples


def tracks(samples, device):
    sample, segment, noise, ids = [], [], [], 0
    for s, spans in enumerate(samples):
        for kind, length in spans:
            sample += [s] * length
            segment += [ids if kind != CAUSAL else -1] * length
            noise += [ids if kind == NOISE else -1] * length
            ids += 1
    return [torch.tensor(x, dtype=torch.int32, device=device) for x in (sample, segment, noise)]


class Marble:
    def __init__(self, path):
        lib = ctypes.CDLL(path)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        lib.marble_bench_error.restype = ctypes.c_char_p
        lib.marble_bench_open.restype = pointer
        lib.marble_bench_open.argtypes = [pointer] * 3 + [integer] * 2 + [ctypes.c_int32] * 3 + [ctypes.c_double]
        lib.marble_bench_close.argtypes = [pointer]
        for name in ("rows", "tiles"):
            function = getattr(lib, f"marble_bench_{name}")
            function.restype, function.argtypes = integer, [pointer]
        lib.marble_bench_positions.argtypes = [pointer] * 2
        lib.marble_bench_forward.argtypes = [pointer] * 6
        lib.marble_bench_backward.argtypes = [pointer] * 10
        self.lib = lib

    def open(self, samples, window, heads, kv_heads, dim):
        spans = [span for sample in samples for span in sample]
        begin = [0]
        for sample in samples:
            begin.append(begin[-1] + len(sample))
        arrays = [
            torch.tensor([s[0] for s in spans], dtype=torch.int32),
            torch.tensor([s[1] for s in spans], dtype=torch.int64),
            torch.tensor(begin, dtype=torch.int64),
        ]
        problem = self.lib.marble_bench_open(
            *(a.data_ptr() for a in arrays), len(samples), window, heads, kv_heads, dim, dim**-0.5
        )
        if not problem:
            raise RuntimeError(self.lib.marble_bench_error().decode())
        return problem

    def run(self, direction, problem, *tensors):
        function = getattr(self.lib, f"marble_bench_{direction}")
        if function(problem, *(t.data_ptr() for t in tensors)):
            raise RuntimeError(self.lib.marble_bench_error().decode())


def sdpa(backend, causal, q, k, v):
    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return call


def flex(samples, window, tokens, q, k, v):
    """The compiled call, and the number of legal pairs by the mask that it uses."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    sample, segment, noise = tracks(samples, q.device)

    def legal(b, h, i, j):
        causal = (i >= j) & ((i - j < window) if window else (i >= 0))
        same_span = (segment[i] == segment[j]) & (segment[i] >= 0)
        return (causal | same_span) & ((noise[j] < 0) | (noise[i] == noise[j])) & (sample[i] == sample[j])

    rows = torch.arange(tokens, device=q.device)
    pairs = sum(int(legal(0, 0, rows[c : c + 4096, None], rows[None, :]).sum()) for c in range(0, tokens, 4096))
    mask = torch.compile(create_block_mask)(legal, None, None, tokens, tokens, device="cuda")
    compiled = torch.compile(flex_attention)
    return (lambda: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])), pairs


def interleaved(calls, repeats):
    """Median milliseconds of each call, one after the other `repeats` times."""
    times = {name: [] for name in calls}
    for turn in range(repeats + 2):
        for name, call in calls.items():
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def run_case(marble, name, samples, window, dim, repeats):
    heads, kv_heads = HEADS[dim]
    tokens = sum(length for sample in samples for _, length in sample)
    problem = marble.open(samples, window, heads, kv_heads, dim)
    rows = marble.lib.marble_bench_rows(problem)
    positions = torch.empty(tokens, dtype=torch.int64)
    marble.lib.marble_bench_positions(problem, positions.data_ptr())
    positions = positions.cuda()

    def random(h):
        return torch.randn(1, h, tokens, dim, device="cuda", dtype=torch.bfloat16)

    q, k, v, dout = random(heads), random(kv_heads), random(kv_heads), random(heads)

    def placed(x):
        out = torch.zeros(rows, x.shape[1], dim, device="cuda", dtype=torch.bfloat16)
        out[:tokens] = x[0].transpose(0, 1)[positions]
        return out

    ours = [placed(x) for x in (q, k, v)]
    out, lse = torch.empty_like(ours[0]), torch.empty(rows, heads, device="cuda")
    dq, dk, dv = torch.empty_like(ours[0]), *(torch.empty(ours[1].shape, device="cuda") for _ in "kv")
    placed_dout = placed(dout)
    calls = {"marble": lambda: marble.run("forward", problem, *ours, out, lse)}
    if len(samples) == 1 and len(samples[0]) == 1:
        causal = samples[0][0][0] == CAUSAL
        pairs = tokens * (tokens + 1) // 2 if causal else tokens * tokens
        calls["cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION, causal, q, k, v)
        calls["flash"] = sdpa(SDPBackend.FLASH_ATTENTION, causal, q, k, v)
    else:
        calls["flex"], pairs = flex(samples, window, tokens, q, k, v)

    calls["marble"]()
    for peer in [c for c in calls if c != "marble"]:
        theirs = calls[peer]()[0].transpose(0, 1)[positions].float()
        error = float((out[:tokens].float() - theirs).norm() / theirs.norm())
        if not error < 0.01:
            sys.exit(f"{name}: output differs from {peer}'s by {error:.3g}")
    tiles = marble.lib.marble_bench_tiles(problem) * 128 * 128
    case = (name, heads, kv_heads, dim, tokens, window, pairs, tiles)
    result = case_rows(case, "forward", 4, interleaved(calls, repeats))
    backward = {
        "marble": lambda: marble.run("backward", problem, *ours, out, placed_dout, lse, dq, dk, dv),
        **{peer: differentiated(calls[peer], (q, k, v), dout) for peer in calls if peer != "marble"},
    }
    backward["marble"]()
    for peer in [c for c in backward if c != "marble"]:
        for mine, theirs in zip((dq, dk, dv), backward[peer]()):
            theirs = theirs[0].transpose(0, 1)[positions].float()
            error = float((mine[:tokens].float() - theirs).norm() / theirs.norm())
            if not error < 0.02:
                sys.exit(f"{name}: a gradient differs from {peer}'s by {error:.3g}")
    result += case_rows(case, "backward", 10, interleaved(backward, repeats))
    marble.lib.marble_bench_close(problem)
    return result


def differentiated(call, inputs, dout):
    """The backward pass of a peer's call, its forward pass run once."""
    leaves = [x.requires_grad_() for x in inputs]
    with torch.enable_grad():
        output = call()
    return lambda: torch.autograd.grad(output, leaves, dout, retain_graph=True)


def case_rows(case, direction, flops, times):
    name, heads, kv_heads, dim, tokens, window, pairs, tiles = case
    result = []
    for system, ms in times.items():
        row = {
            "case": name,
            "direction": direction,
            "system": system,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": dim,
            "tokens": tokens,
            "window": window,
            "density": round(pairs / tokens**2, 4),
            "ms": round(ms, 4),
            "tflops": round(flops * dim * heads * pairs / ms / 1e9, 1),
        }
        if system == "marble":
            row["tile_tflops"] = round(flops * dim * heads * tiles / ms / 1e9, 1)
        result.append(row)
    return result


def cases(quick):
    for dim in (128, 64, 256):
        for tokens in (16384,) if quick or dim != 128 else (16384, 65536):
            yield f"dense {tokens // 1024}k", dense(tokens, FULL), 0, dim
            yield f"causal {tokens // 1024}k", dense(tokens, CAUSAL), 0, dim
    for dim in (128,) if quick else (128, 256):
        yield "documents 4k, full spans", packed(65536, 4096, FULL), 0, dim
        yield "documents 16k, noise spans", packed(65536, 16384, NOISE), 0, dim
        yield "window 1024, full spans", packed(65536, 16384, FULL), 1024, dim


def command_output(*command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--commit", default=command_output("git", "rev-parse", "--short", "HEAD"))
    arguments = parser.parse_args()
    versions = f"CUDA {torch.version.cuda}, torch {torch.__version__.split('+')[0]}"
    about = {
        "machine": f"{torch.cuda.get_device_name()}, {versions}",
        "cudnn": torch.backends.cudnn.version(),
        "commit": arguments.commit,
        "date": datetime.date.today().isoformat(),
        "command": "bench/gpu_attention.py" + (" --quick" if arguments.quick else ""),
    }
    marble = Marble(arguments.lib)
    rows = []
    for name, samples, window, dim in cases(arguments.quick):
        found = run_case(marble, name, samples, window, dim, arguments.repeats)
        rows += [{**row, **about} for row in found]
        for direction in ("forward", "backward"):
            ours, *peers = (row for row in found if row["direction"] == direction)
            print(
                f"{name:28s} d{dim:<4d} {direction:8s} marble {ours['tflops']:6.1f} "
                f"(tiles {ours['tile_tflops']:6.1f})  "
                + "  ".join(
                    f"{row['system']} {row['tflops']:6.1f} (x{ours['tflops'] / row['tflops']:.2f})" for row in peers
                ),
                flush=True,
            )
        torch.cuda.empty_cache()
    if arguments.out:
        pathlib.Path(arguments.out).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

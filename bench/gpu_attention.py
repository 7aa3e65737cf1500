#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Attention kernels on one GPU beside their peers, on the same random data and in one run.

    gpu_attention.py --lib libmarble_gpu_bench.so [--out rows.jsonl] [--quick] [--only TEXT]

Each case times MARBLE, torch's SDPA (cuDNN and flash) and FlashAttention-4 where it is installed (dense and causal
cases), and compiled FlexAttention with a prebuilt block mask (packed cases), interleaved call by call; figures are
medians of device events. Beside flash, MARBLE's kernels for any GPU from sm_80 on are timed too ("marble plain").
Backward is the whole layer's: for MARBLE delta, zeroed sums, kernels and dQ's cast; also once with deterministic
sums. TFLOP/s count legal pairs only: 4 * head_dim per pair and query head, 10 * head_dim backward.
Outputs and gradients are compared before anything is timed: a peer that fails, or differs from MARBLE, is listed and
not timed; a case in which MARBLE agrees with none ends the run.
"""

import argparse
import ctypes
import datetime
import functools
import importlib.metadata
import json
import pathlib
import random
import statistics
import subprocess
import sys

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CAUSAL, FULL, NOISE = 0, 1, 2  # marble::Mode
FLOPS = {"forward": 4, "backward": 10, "forward+backward": 14}  # per legal pair, query head and dimension
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
        spans = [pointer] * 3 + [integer] * 2
        lib.marble_bench_open.argtypes = [*spans, *[ctypes.c_int32] * 3, ctypes.c_double, ctypes.c_int32]
        lib.marble_bench_close.argtypes = [pointer]
        for name in ("rows", "tiles"):
            function = getattr(lib, f"marble_bench_{name}")
            function.restype, function.argtypes = integer, [pointer]
        lib.marble_bench_positions.argtypes = [pointer] * 2
        lib.marble_bench_forward.argtypes = [pointer] * 6
        lib.marble_bench_backward.argtypes = [pointer, ctypes.c_int32] + [pointer] * 9
        lib.marble_bench_ring_errors.argtypes = [*spans, *[ctypes.c_int32] * 4, ctypes.POINTER(ctypes.c_double)]
        self.lib = lib

    @staticmethod
    def spans(samples):
        """The arrays that describe a layout, to be kept while the library reads them."""
        spans = [span for sample in samples for span in sample]
        begin = [0]
        for sample in samples:
            begin.append(begin[-1] + len(sample))
        return [
            torch.tensor([s[0] for s in spans], dtype=torch.int32),
            torch.tensor([s[1] for s in spans], dtype=torch.int64),
            torch.tensor(begin, dtype=torch.int64),
        ]

    def open(self, samples, window, heads, kv_heads, dim, plain):
        arrays = self.spans(samples)
        problem = self.lib.marble_bench_open(
            *(a.data_ptr() for a in arrays), len(samples), window, heads, kv_heads, dim, dim**-0.5, plain
        )
        if not problem:
            raise RuntimeError(self.lib.marble_bench_error().decode())
        return problem

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.marble_bench_error().decode())

    def ring_errors(self, samples, window, heads, kv_heads, dim, ring):
        """Errors of out, dq, dk, dv against fp64: of a ring's ranks on this GPU, and of one rank."""
        arrays = self.spans(samples)
        errors = (ctypes.c_double * 8)()
        self.check(
            self.lib.marble_bench_ring_errors(
                *(a.data_ptr() for a in arrays), len(samples), window, heads, kv_heads, dim, ring, errors
            )
        )
        return list(errors[:4]), list(errors[4:])


class Case:
    """A layout's problem, and its tensors in the order in which the rank stores its rows. `plain`: with the kernels
    that any GPU has, not the device's best."""

    def __init__(self, marble, samples, window, heads, kv_heads, dim, inputs, plain=False):
        self.marble, self.tokens = marble, inputs[0].shape[2]
        self.problem = marble.open(samples, window, heads, kv_heads, dim, plain)
        self.rows = marble.lib.marble_bench_rows(self.problem)
        positions = torch.empty(self.tokens, dtype=torch.int64)
        marble.lib.marble_bench_positions(self.problem, positions.data_ptr())
        self.positions = positions.cuda()
        self.q, self.k, self.v, self.dout = (self.placed(x) for x in inputs)
        self.out, self.dq = torch.empty_like(self.q), torch.empty_like(self.q)
        self.lse = torch.empty(self.rows, heads, device="cuda")
        self.dk, self.dv = (torch.empty(self.k.shape, device="cuda") for _ in "kv")

    def placed(self, x):
        """[1, heads, tokens, dim] as the rank's rows; pads are zero."""
        rows = torch.zeros(self.rows, x.shape[1], x.shape[3], device=x.device, dtype=x.dtype)
        rows[: self.tokens] = x[0].transpose(0, 1)[self.positions]
        return rows

    def forward(self):
        tensors = (self.q, self.k, self.v, self.out, self.lse)
        self.marble.check(self.marble.lib.marble_bench_forward(self.problem, *(t.data_ptr() for t in tensors)))

    def backward(self, deterministic=False):
        tensors = (self.q, self.k, self.v, self.out, self.dout, self.lse, self.dq, self.dk, self.dv)
        self.marble.check(
            self.marble.lib.marble_bench_backward(self.problem, deterministic, *(t.data_ptr() for t in tensors))
        )

    def difference(self, mine, theirs):
        theirs = self.placed(theirs).float()
        return float((mine[: self.tokens].float() - theirs[: self.tokens]).norm() / theirs.norm())

    def close(self):
        self.marble.lib.marble_bench_close(self.problem)


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
    mask = create_block_mask(legal, None, None, tokens, tokens, device="cuda")
    compiled = torch.compile(flex_attention)
    return (lambda: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])), pairs


def interleaved(calls, repeats):
    """Median milliseconds of each call, one after the other `repeats` times. Every turn has another order: a call that
    draws much power lowers the clock for the one after it, by 7 % where the same call was listed twice."""
    times = {name: [] for name in calls}
    order = random.Random(0)
    for turn in range(repeats + 2):
        for name, call in order.sample(list(calls.items()), len(calls)):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


@functools.cache
def flash_attn_func():
    """FlashAttention-4's; None, said once, where it does not import."""
    try:
        from flash_attn.cute import flash_attn_func as function
    except Exception as error:  # its compiler looks for libraries and devices on import
        print(f"flash-4: does not import ({reason(error)})", flush=True)
        return None
    return function


def reason(error):
    return f"{type(error).__name__}: {error}".splitlines()[0]


def flash_attention_4(causal, q, k, v):
    function = flash_attn_func()
    if function is None:
        return None

    def call():
        out = function(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call


def peers(samples, window, tokens, q, k, v):
    """Calls of q, k and v by name, and the number of legal pairs."""
    if len(samples) > 1 or len(samples[0]) > 1 or window:
        call, pairs = flex(samples, window, tokens, q, k, v)
        return {"flex": call}, pairs
    causal = samples[0][0][0] == CAUSAL
    calls = {
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, causal, q, k, v),
        "flash": sdpa(SDPBackend.FLASH_ATTENTION, causal, q, k, v),
        "flash-4": flash_attention_4(causal, q, k, v),
    }
    pairs = tokens * (tokens + 1) // 2 if causal else tokens * tokens
    return {name: call for name, call in calls.items() if call is not None}, pairs


def differentiated(call, inputs, dout):
    """Backward of a peer's call, its forward run once; and both in turn."""
    with torch.enable_grad():
        output = call()

    def forward_backward():
        with torch.enable_grad():
            return torch.autograd.grad(call(), inputs, dout)

    return (lambda: torch.autograd.grad(output, inputs, dout, retain_graph=True)), forward_backward


def difference(case, call, backward):
    """What differs between the case's results and a peer's; None where nothing does."""
    with torch.no_grad():
        error = case.difference(case.out, call())
    if not error < 0.01:
        return f"output differs by {error:.3g}"
    for gradient, mine, theirs in zip("qkv", (case.dq, case.dk, case.dv), backward()):
        error = case.difference(mine, theirs)
        if not error < 0.02:
            return f"d{gradient} differs by {error:.3g}"
    return None


def compared(case, calls, leaves, dout):
    """Of peers that agree with the case, calls of backward and of both passes; of others, what they are and why."""
    case.forward()
    case.backward()
    agreed, refused = {}, {}
    for peer, call in calls.items():
        try:
            backward, both = differentiated(call, leaves, dout)
            differs = difference(case, call, backward)
        except Exception as error:  # whatever a peer raises: the others can still be timed
            refused[peer] = ("failed", reason(error))
            continue
        if differs:
            refused[peer] = ("wrong", differs)
        else:
            agreed[peer] = (backward, both)
    return agreed, refused


def run_case(marble, name, samples, window, dim, repeats):
    heads, kv_heads = HEADS[dim]
    tokens = sum(length for sample in samples for _, length in sample)

    def random(h):
        return torch.randn(1, h, tokens, dim, device="cuda", dtype=torch.bfloat16)

    q, k, v, dout = random(heads), random(kv_heads), random(kv_heads), random(heads)
    case = Case(marble, samples, window, heads, kv_heads, dim, (q, k, v, dout))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    calls, pairs = peers(samples, window, tokens, q, k, v)
    agreed, refused = compared(case, calls, leaves, dout)
    for peer, (status, why) in refused.items():
        print(f"{name} d{dim}: {peer} {status}: {why}", flush=True)
    if not agreed:
        sys.exit(f"{name} d{dim}: no peer agrees")
    calls = {peer: calls[peer] for peer in agreed}
    backwards = {peer: backward for peer, (backward, _) in agreed.items()}
    both = {peer: both for peer, (_, both) in agreed.items()}

    def without_gradients(call):
        def run():
            with torch.no_grad():
                call()

        return run

    timed = {
        "forward": {"marble": case.forward, **{peer: without_gradients(call) for peer, call in calls.items()}},
        "backward": {
            "marble": case.backward,
            "marble deterministic": lambda: case.backward(deterministic=True),
            **backwards,
        },
        "forward+backward": {"marble": lambda: (case.forward(), case.backward()), **both},
    }
    plain = None
    if "flash" in calls:
        inputs = [x.detach() for x in (q, k, v, dout)]
        plain = Case(marble, samples, window, heads, kv_heads, dim, inputs, plain=True)
        plain.forward()
        plain.backward()
        differs = difference(plain, calls["flash"], backwards["flash"])
        if differs:
            sys.exit(f"{name} d{dim}, plain kernels: {differs}")
        timed["forward"]["marble plain"] = plain.forward
        timed["backward"]["marble plain"] = plain.backward
        timed["forward+backward"]["marble plain"] = lambda: (plain.forward(), plain.backward())
    tiles = marble.lib.marble_bench_tiles(case.problem) * 128 * 128
    shape = (name, heads, kv_heads, dim, tokens, window, pairs, tiles)
    result = [
        {"case": name, "system": peer, "head_dim": dim, "tokens": tokens, "status": status, "reason": why}
        for peer, (status, why) in refused.items()
    ]
    for direction, systems in timed.items():
        result += case_rows(shape, direction, interleaved(systems, repeats))
    case.close()
    if plain:
        plain.close()
    return result


def case_rows(shape, direction, times):
    name, heads, kv_heads, dim, tokens, window, pairs, tiles = shape
    flops = FLOPS[direction] * dim * heads
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
            "tflops": round(flops * pairs / ms / 1e9, 1),
        }
        if system.startswith("marble"):
            row["tile_tflops"] = round(flops * tiles / ms / 1e9, 1)
        if system == "flash-4":
            row["version"] = importlib.metadata.version("flash-attn-4")
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


def add_common_arguments(parser):
    parser.add_argument("--lib", required=True)
    parser.add_argument("--out", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--commit", default=command_output("git", "rev-parse", "--short", "HEAD"))


def about(arguments):
    """What every row says of where it was measured."""
    script = "bench/" + pathlib.Path(sys.argv[0]).name
    return {
        "machine": f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, torch "
        + torch.__version__.split("+")[0],
        "cudnn": torch.backends.cudnn.version(),
        "commit": arguments.commit,
        "date": datetime.date.today().isoformat(),
        "command": script + (" --quick" if arguments.quick else ""),
    }


def write_rows(arguments, rows):
    """The rows so far."""
    if arguments.out:
        pathlib.Path(arguments.out).write_text("".join(json.dumps(row) + "\n" for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    arguments = parser.parse_args()
    # Compiled calls would else free what a second backward pass of the same forward pass reads.
    torch._functorch.config.donated_buffer = False
    marble = Marble(arguments.lib)
    rows = []
    for name, samples, window, dim in cases(arguments.quick):
        if arguments.only not in f"{name} d{dim}":
            continue
        found = run_case(marble, name, samples, window, dim, arguments.repeats)
        rows += [{**row, **about(arguments)} for row in found]
        for direction in FLOPS:
            ours, *others = (row for row in found if row.get("direction") == direction)
            print(
                f"{name:28s} d{dim:<4d} {direction:16s} marble {ours['tflops']:6.1f} "
                f"(tiles {ours['tile_tflops']:6.1f})  "
                + "  ".join(
                    f"{row['system']} {row['tflops']:6.1f} (x{ours['tflops'] / row['tflops']:.2f})" for row in others
                ),
                flush=True,
            )
        torch.cuda.empty_cache()
        write_rows(arguments, rows)


if __name__ == "__main__":
    main()

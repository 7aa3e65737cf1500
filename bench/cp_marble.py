# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""MARBLE over the GPUs of a torchrun job, through bench/layer_capi.cpp."""

import ctypes

import torch

POINTER, LONG, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Library:
    def __init__(self, path):
        lib = self.lib = ctypes.CDLL(path)

        def declare(name, result, *arguments):
            function = getattr(lib, f"marble_{name}")
            function.restype, function.argtypes = result, arguments

        declare("layer_error", ctypes.c_char_p)
        declare("group_open", POINTER, ctypes.c_int, POINTER, ctypes.c_int)
        declare("group_close", None, POINTER)
        declare("group_describe", ctypes.c_char_p, POINTER)
        declare("group_check", ctypes.c_int, POINTER)
        declare("group_reserve", POINTER, POINTER, LONG)
        declare("group_begin", LONG, POINTER, POINTER, POINTER, LONG)
        declare("group_wait", ctypes.c_int, POINTER, LONG)
        text = ctypes.c_char_p
        declare("layer_open", POINTER, POINTER, text, LONG, ctypes.c_uint64, LONG, INT, INT, INT, INT, INT, text, text)
        declare("layer_close", None, POINTER)
        declare("layer_describe", text, POINTER)
        declare("layer_predicted_ms", ctypes.c_double, POINTER)
        for name in ("rows", "tokens", "legal_pairs"):
            declare(f"layer_{name}", LONG, POINTER)
        declare("layer_positions", LONG, POINTER, POINTER)
        declare("layer_tracks", None, *[POINTER] * 4)
        declare("layer_forward", ctypes.c_int, *[POINTER] * 6)
        declare("layer_backward", ctypes.c_int, *[POINTER] * 10)

    def must(self, good):
        if not good:
            raise RuntimeError(self.lib.marble_layer_error().decode())


class Group:
    """A communicator, or this process alone, on torch's current stream."""

    def __init__(self, library, alone=False):
        self.library = library
        self.size = 1 if alone else torch.distributed.get_world_size()
        stream = torch.cuda.current_stream().cuda_stream
        self.handle = library.lib.marble_group_open(torch.cuda.current_device(), stream, int(alone))
        library.must(self.handle)

    def describe(self):
        return self.library.lib.marble_group_describe(self.handle).decode()

    def close(self):
        torch.cuda.synchronize()
        self.library.lib.marble_group_close(self.handle)

    def check(self):
        torch.cuda.synchronize()
        self.library.must(self.library.lib.marble_group_check(self.handle) == 0)

    def landing(self, tensor):
        """Where as many bytes as the tensor has can arrive; collective."""
        bytes_ = tensor.numel() * tensor.element_size()
        reserved = self.library.lib.marble_group_reserve(self.handle, bytes_)
        self.own_landing = None if reserved else torch.empty_like(tensor)
        return reserved or self.own_landing.data_ptr()

    def begin(self, send, landing):
        bytes_ = send.numel() * send.element_size()
        ticket = self.library.lib.marble_group_begin(self.handle, send.data_ptr(), landing, bytes_)
        self.library.must(ticket >= 0)
        return ticket

    def wait(self, ticket):
        self.library.must(self.library.lib.marble_group_wait(self.handle, ticket) == 0)


STRATEGIES = ("ring", "alltoall", "allgather")
PLACEMENTS = ("contiguous", "zigzag", "striped", "ptrr", "chunks", "dealt")


def mesh_modes(size):
    """Every split of the GPUs into ring x Ulysses."""
    return [f"{size // ulysses}x{ulysses}" for ulysses in range(1, size + 1) if size % ulysses == 0]


class Marble:
    """One layer. A mode is a mesh "ring x ulysses", a strategy and a placement, or "auto": what it leaves open is the
    planner's choice."""

    name = "marble"

    def __init__(self, group, case, mode="auto"):
        self.group, self.case, self.mode = group, case, mode
        words = [word for word in mode.split() if word != "auto"]
        ring, ulysses = next((map(int, word.split("x")) for word in words if word[0].isdigit()), (0, 0))
        strategy, placement = (next((w for w in words if w in known), "") for known in (STRATEGIES, PLACEMENTS))
        self.lib = group.library.lib
        self.handle = self.lib.marble_layer_open(
            group.handle, case.layout_text.encode(), case.tokens, case.seed, case.window, case.heads, case.kv_heads,
            case.head_dim, ring, ulysses, strategy.encode(), placement.encode(),
        )  # fmt: skip
        group.library.must(self.handle)
        self.detail = self.lib.marble_layer_describe(self.handle).decode()
        self.predicted_ms = self.lib.marble_layer_predicted_ms(self.handle)
        self.rows = self.lib.marble_layer_rows(self.handle)
        self.pairs = self.lib.marble_layer_legal_pairs(self.handle)
        positions = torch.empty(self.rows, dtype=torch.int64)
        count = self.lib.marble_layer_positions(self.handle, positions.data_ptr())
        self.positions = positions[:count].cuda()

    def tracks(self):
        """Position, sample, segment and noise of every token of the pack."""
        tokens = self.lib.marble_layer_tokens(self.handle)
        tracks = [torch.arange(tokens, dtype=torch.int32)] + [torch.empty(tokens, dtype=torch.int32) for _ in range(3)]
        self.lib.marble_layer_tracks(self.handle, *(t.data_ptr() for t in tracks[1:]))
        return [t.cuda() for t in tracks]

    def load(self, tensors):
        def placed(x):
            rows = torch.zeros(self.rows, *x.shape[1:], device="cuda", dtype=x.dtype)
            rows[: len(self.positions)] = x[self.positions]
            return rows

        self.q, self.k, self.v, self.dout = (placed(x) for x in tensors)
        self.out, self.dq = torch.empty_like(self.q), torch.empty_like(self.q)
        self.dk, self.dv = torch.empty_like(self.k), torch.empty_like(self.k)
        self.lse = torch.empty(self.rows, self.case.heads, device="cuda")

    def call(self, direction, *tensors):
        function = getattr(self.lib, f"marble_layer_{direction}")
        self.group.library.must(function(self.handle, *(t.data_ptr() for t in tensors)) == 0)

    def forward(self):
        self.call("forward", self.q, self.k, self.v, self.out, self.lse)

    def layer(self):
        self.forward()
        self.call("backward", self.q, self.k, self.v, self.out, self.lse, self.dout, self.dq, self.dk, self.dv)

    def results(self):
        self.group.check()
        return [x[: len(self.positions)] for x in (self.out, self.dq, self.dk, self.dv)]

    def close(self):
        torch.cuda.synchronize()
        self.lib.marble_layer_close(self.handle)

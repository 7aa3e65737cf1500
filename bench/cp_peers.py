# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's context parallelism: SDPA for causal cases, FlexAttention for masks."""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor.experimental import _context_parallel as cp
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from cp_case import legal

SEQUENCE = 2  # axis of [batch, heads, tokens, head_dim]
SDPA_BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
FLEX_MODES = ["ptrr", "headtail", "documents", "unbalanced"]
FLASH_TOKENS = 65536  # flash takes 1.6 times as long as cuDNN there, and is left out beyond


def sdpa_modes(tokens):
    backends = [backend for backend in SDPA_BACKENDS if backend != "flash" or tokens <= FLASH_TOKENS]
    return [f"{backend} {rotation}" for backend in backends for rotation in ("allgather", "alltoall")]


class Peer:
    def __init__(self, mesh, case, mode):
        self.mesh, self.case, self.mode, self.detail = mesh, case, mode, ""

    def place(self, tensors, indices):
        """This rank's part of tensors [tokens, heads, head_dim], after reordering by `indices` (None: as they are)."""
        tokens, rank, size = self.case.tokens, self.mesh.get_local_rank(), self.mesh.size()
        order = torch.arange(tokens, device="cuda") if indices is None else indices[0]
        self.positions = order.chunk(size)[rank]
        placed = [x[self.positions].transpose(0, 1)[None].contiguous() for x in tensors]
        self.inputs = [x.requires_grad_() for x in placed[:3]]
        self.dout = placed[3]

    def layer(self):
        self.out = self.forward()
        self.grads = torch.autograd.grad(self.out, self.inputs, self.dout)

    def results(self):
        return [x[0].transpose(0, 1) for x in (self.out.detach(), *self.grads)]

    def close(self):
        self.inputs = self.dout = self.out = self.grads = None


class TorchSdpa(Peer):
    """context_parallel, balanced head and tail. Modes: a kernel, and how keys rotate."""

    name = "torch SDPA"

    def load(self, tensors):
        indices = cp._HeadTailLoadBalancer(self.case.tokens, self.mesh.size(), "cuda")._generate_indices()
        self.place(tensors, indices)

    def within(self, fn):
        kernel, rotation = self.mode.split()
        cp.set_rotate_method(rotation)
        # The context shards buffers in place; these tensors are sharded already, so a dummy enters it.
        dummy = torch.zeros(2 * self.mesh.size(), device="cuda")
        with cp.context_parallel(self.mesh, buffers=[dummy], buffer_seq_dims=[0]):
            with sdpa_kernel(SDPA_BACKENDS[kernel]):
                return fn()

    def forward(self):
        q, k, v = self.inputs
        grouped = self.case.heads != self.case.kv_heads
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


class TorchFlex(Peer):
    """FlexAttention with gathered keys. Modes: what balances the queries' blocks.

    PyTorch would make the block mask by a compiled function of its own, which takes longer than all else here; ours
    counts legal pairs block by block. It is not timed.
    """

    name = "torch FlexAttention"

    def __init__(self, mesh, case, mode, tracks):
        super().__init__(mesh, case, mode)
        self.tracks = tracks
        module = parallelize_module(
            FlexModule(), mesh, cp._ContextParallel(SEQUENCE, cp._ContextParallel.AttentionType.FLEX)
        )
        self.attend = module

    def balancer(self):
        tokens, size = self.case.tokens, self.mesh.size()
        if self.mode == "ptrr":
            return cp._PTRRLoadBalancer(global_block_mask(self.tracks, self.case.window), size)
        if self.mode == "headtail":
            return cp._HeadTailLoadBalancer(tokens, size, "cuda")
        if self.mode == "documents":
            lengths = torch.unique_consecutive(self.tracks[1], return_counts=True)[1].tolist()
            if any(length % (2 * size) for length in lengths):
                raise ValueError(f"needs documents of a multiple of {2 * size} tokens")
            return cp._PerDocumentHeadTailLoadBalancer([lengths], size, "cuda")
        return None

    def load(self, tensors):
        balancer = self.balancer()
        indices = balancer._generate_indices() if balancer else None
        self.place(tensors, indices)
        queries = [track[self.positions] for track in self.tracks]
        keys = self.tracks if indices is None else [track[indices[0]] for track in self.tracks]
        counts = count_pairs(queries, keys, self.case.window)
        self.mask = block_mask(counts, queries, keys, self.case.window)

    def forward(self):
        return self.attend(*self.inputs, self.mask, self.case.heads != self.case.kv_heads)


BLOCK = 128


def count_pairs(queries, keys, window, chunk=4096):
    """Legal pairs of each block of queries with each block of keys."""
    index = torch.arange(len(keys[0]), device=keys[0].device)
    counts = []
    for begin in range(0, len(queries[0]), chunk):
        rows = torch.arange(begin, min(begin + chunk, len(queries[0])), device=index.device)
        pairs = legal(queries, keys, window, rows[:, None], index[None, :])
        counts.append(pairs.view(-1, BLOCK, len(index) // BLOCK, BLOCK).sum((1, 3), dtype=torch.int32))
    return torch.cat(counts)


def block_mask(counts, queries, keys, window):
    full = counts == BLOCK * BLOCK

    def listed(blocks):
        """How many there are in each row, and which come first."""
        order = blocks.int().argsort(dim=-1, descending=True, stable=True)
        return blocks.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None].contiguous()

    def mask_mod(b, h, i, j):
        return legal(queries, keys, window, i, j)

    partial_blocks, full_blocks = listed((counts > 0) & ~full), listed(full)
    lengths = (len(queries[0]), len(keys[0]))
    return BlockMask.from_kv_blocks(*partial_blocks, *full_blocks, BLOCK, mask_mod, lengths)


def global_block_mask(tracks, window):
    """Of all queries in the order of the pack; each rank counts its share."""
    share = [track.chunk(dist.get_world_size())[dist.get_rank()] for track in tracks]
    mine = count_pairs(share, tracks, window)
    counts = mine.new_empty(mine.shape[0] * dist.get_world_size(), mine.shape[1])
    dist.all_gather_into_tensor(counts, mine)
    return block_mask(counts, tracks, tracks, window)


class FlexModule(torch.nn.Module):
    def forward(self, q, k, v, block_mask, enable_gqa):
        return compiled(flex_attention)(q, k, v, block_mask=block_mask, enable_gqa=enable_gqa)


@functools.cache
def compiled(function):
    return torch.compile(function, dynamic=False)

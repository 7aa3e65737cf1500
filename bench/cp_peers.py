# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's context parallelism: SDPA for causal cases, FlexAttention for masks."""

import functools

import torch
import torch.nn.functional as F
from torch.distributed.tensor.experimental import _context_parallel as cp
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from cp_case import legal

SEQUENCE = 2  # axis of [batch, heads, tokens, head_dim]
SDPA_BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
SDPA_MODES = [f"{backend} {rotation}" for backend in SDPA_BACKENDS for rotation in ("allgather", "alltoall")]
FLEX_MODES = ["ptrr", "headtail", "documents", "unbalanced"]


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
    """FlexAttention with gathered keys. Modes: what balances the queries' blocks."""

    name = "torch FlexAttention"

    def __init__(self, mesh, case, mode, tracks):
        super().__init__(mesh, case, mode)
        self.tracks = tracks
        module = parallelize_module(
            FlexModule(), mesh, cp._ContextParallel(SEQUENCE, cp._ContextParallel.AttentionType.FLEX)
        )
        self.attend = module

    def balancer(self, mask):
        tokens, size = self.case.tokens, self.mesh.size()
        if self.mode == "ptrr":
            return cp._PTRRLoadBalancer(mask, size)
        if self.mode == "headtail":
            return cp._HeadTailLoadBalancer(tokens, size, "cuda")
        if self.mode == "documents":
            lengths = torch.unique_consecutive(self.tracks[0], return_counts=True)[1].tolist()
            if any(length % (2 * size) for length in lengths):
                raise ValueError(f"needs documents of a multiple of {2 * size} tokens")
            return cp._PerDocumentHeadTailLoadBalancer([lengths], size, "cuda")
        return None

    def load(self, tensors):
        tokens, window, tracks = self.case.tokens, self.case.window, self.tracks
        mask = compiled(create_block_mask)(
            lambda b, h, i, j: legal(tracks, window, i, j), 1, 1, tokens, tokens, device="cuda"
        )
        balancer = self.balancer(mask)
        self.place(tensors, balancer._generate_indices() if balancer else None)
        (self.mask,) = cp._context_parallel_shard(self.mesh, [mask], [SEQUENCE], balancer)

    def within(self, fn):
        return fn()

    def forward(self):
        return self.attend(*self.inputs, self.mask, self.case.heads != self.case.kv_heads)


class FlexModule(torch.nn.Module):
    def forward(self, q, k, v, block_mask, enable_gqa):
        return compiled(flex_attention)(q, k, v, block_mask=block_mask, enable_gqa=enable_gqa)


@functools.cache
def compiled(function):
    return torch.compile(function, dynamic=False)

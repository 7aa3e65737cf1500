# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""How marble fits a model in torchtitan's style: an inner attention module, and a parallelize function.

    python examples/torchtitan_style.py
    torchrun --nproc-per-node 4 examples/torchtitan_style.py --ulysses 2

torchtitan builds its models with an inner attention module of no parameters and parallelizes them from outside: here
the inner module is replaced (checkpoints stay as they are), each block is checkpointed, compiled and given to FSDP2,
and the context-parallel degree is a dimension of the DeviceMesh.
"""

from __future__ import annotations

import argparse
import os

import marble
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY = 64, 4, 2, 2, 50
TOKENS = 400


class CausalAttention(nn.Module):
    """What torchtitan starts from: one document, one device."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: marble.Plan | None) -> Tensor:
        """[rows, heads, head_dim]."""
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1)


class MarbleAttention(nn.Module):
    """The same place in the model, over a plan's rows."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: marble.Plan) -> Tensor:
        """[rows, heads, head_dim]."""
        return marble.attention(q, k, v, plan)


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * WIDTH // HEADS * KV_HEADS)
        self.inner_attention = CausalAttention()
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 128), nn.SiLU(), nn.Linear(128, WIDTH))

    def forward(self, x: Tensor, plan: marble.Plan | None = None) -> Tensor:
        """[rows, width] to [rows, width]."""
        heads = self.qkv(self.norm(x)).unflatten(-1, (-1, WIDTH // HEADS))
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        x = x + self.out(self.inner_attention(q, k, v, plan).flatten(1))
        return x + self.feed_forward(x)


class Transformer(nn.Module):
    """Token ids to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(layer): Block() for layer in range(LAYERS)})
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, plan: marble.Plan | None = None) -> Tensor:
        """[rows] to [rows, vocabulary]."""
        x = self.embeddings(ids)
        for layer in self.layers.values():
            x = layer(x, plan)
        return self.output(x)


def parallelize(model: Transformer, device_mesh: DeviceMesh | None) -> Transformer:
    """Context parallelism, then activation checkpointing, compilation and FSDP2, in torchtitan's order."""
    for name, block in model.layers.items():
        block.inner_attention = MarbleAttention()
        block = checkpoint_wrapper(block, preserve_rng_state=False)
        block.compile(fullgraph=True, backend="aot_eager")
        if device_mesh is not None:
            fully_shard(block, mesh=device_mesh)
        model.layers[name] = block
    if device_mesh is not None:
        fully_shard(model, mesh=device_mesh)
    return model


def main() -> None:
    """Three steps, each with other documents; the first loss is that of the model before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ulysses", type=int, default=1)
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device_mesh = None
    mesh = marble.Mesh()
    if world > 1:
        dist.init_process_group("gloo")
        device_mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("cp",))
        mesh = marble.Mesh.from_device_mesh(device_mesh, ring="cp", ulysses=options.ulysses)

    torch.manual_seed(0)
    model = Transformer()
    ids = torch.randint(VOCABULARY, (TOKENS + 1,))
    expected = F.cross_entropy(model(ids[:-1]), ids[1:]).item()
    model = parallelize(model, device_mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    attention = marble.Model(heads=HEADS, kv_heads=KV_HEADS, head_dim=WIDTH // HEADS, layers={None: LAYERS})
    for documents in ([TOKENS], [150, 250], [1, 99, 300]):
        layout = marble.Layout([[("causal", length)] for length in documents])
        plan = marble.plan(layout, model=attention, mesh=mesh)
        labels = plan.shard(ids[1:], fill=-100)
        losses = F.cross_entropy(model(plan.shard(ids[:-1]), plan), labels, reduction="none", ignore_index=-100)
        loss = marble.token_mean(losses, labels != -100, plan, gradients="averaged")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if mesh.rank == 0:
            print(f"documents {documents}: loss {loss.item():.5f}")
        if documents == [TOKENS]:
            torch.testing.assert_close(loss.item(), expected, rtol=1e-5, atol=0)
    if world > 1:
        marble.forget_group(mesh.group)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a small multimodal transformer on packed sequences, over any mesh, with the same losses on each.

    python examples/train_packed.py                                                    # one process
    torchrun --nproc-per-node 4 examples/train_packed.py                               # a ring of four
    torchrun --nproc-per-node 4 examples/train_packed.py --ulysses 2 --fsdp            # ring 2 x ulysses 2, FSDP2

Each step has a new layout: samples of text, an image (a bidirectional span) and an answer that names what the image
shows. One layer sees everything, the other a window. With --device cuda each process has a GPU, and attention runs in
bf16. Losses go to --out as JSON; equal seeds give equal data everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import marble
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

VOCABULARY = 32
CLASSES = 8  # of images; an answer token is VOCABULARY - CLASSES + class
FEATURES = 12
WINDOW = 48


@dataclass
class Options:
    """What a run depends on."""

    steps: int = 50
    tokens: int = 768
    seed: int = 0
    ulysses: int = 1
    fsdp: bool = False
    compile: bool = False
    device: str = "cpu"
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    learning_rate: float = 3e-3


class Batch(NamedTuple):
    """One pack: token ids, image features, labels (shifted; -100 where there is none), each of [tokens, ...]."""

    layout: marble.Layout
    ids: Tensor
    features: Tensor
    is_image: Tensor
    labels: Tensor


def make_batch(options: Options, step: int) -> Batch:
    """A pack of exactly ``options.tokens`` tokens."""
    random = torch.Generator().manual_seed(options.seed * 100_003 + step)
    draw = lambda low, high: int(torch.randint(low, high + 1, (), generator=random))  # noqa: E731
    prototypes = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7))
    samples, ids, features, is_image, labels = [], [], [], [], []
    left = options.tokens
    while left > 0:
        text, image, answer = draw(4, 40), draw(9, 64), draw(2, 10)
        if text + image + answer > left:
            text, image, answer = left, 0, 0
        shown = draw(0, CLASSES - 1)
        words = (torch.arange(text) * draw(1, 5) + draw(0, 20)) % (VOCABULARY - CLASSES)
        tail = torch.full((answer,), VOCABULARY - CLASSES + shown)
        sample = torch.cat([words, torch.zeros(image, dtype=torch.int64), tail])
        inside = torch.zeros(len(sample), dtype=torch.bool)
        inside[text : text + image] = True
        target = torch.cat([sample[1:], torch.tensor([-100])])
        target[:-1][inside[1:]] = -100  # images are not predicted
        seen = torch.zeros(len(sample), FEATURES)
        seen[inside] = prototypes[shown] + torch.randn(image, FEATURES, generator=random)
        samples.append([("causal", text), ("full", image), ("causal", answer)])
        for parts, part in zip((ids, features, is_image, labels), (sample, seen, inside, target), strict=True):
            parts.append(part)
        left -= len(sample)
    return Batch(marble.Layout(samples), *(torch.cat(parts) for parts in (ids, features, is_image, labels)))


class Attention(nn.Module):
    """Grouped-query attention with RoPE; the mask is the plan's."""

    def __init__(self, options: Options, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.head_dim = options.width // options.heads
        self.q = nn.Linear(options.width, options.heads * self.head_dim, bias=False)
        self.kv = nn.Linear(options.width, 2 * options.kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(options.heads * self.head_dim, options.width, bias=False)

    def forward(self, x: Tensor, angles: Tensor, plan: marble.Plan) -> Tensor:
        """[rows, width] to [rows, width]."""
        q = _rotate(self.q(x).unflatten(-1, (-1, self.head_dim)), angles)
        k, v = self.kv(x).unflatten(-1, (-1, self.head_dim)).chunk(2, dim=1)
        dtype = torch.bfloat16 if x.is_cuda else x.dtype
        heads = (q.to(dtype), _rotate(k, angles).to(dtype), v.to(dtype))
        return self.out(marble.attention(*heads, plan, window=self.window).flatten(1).to(x.dtype))


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, options: Options, window: int | None) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(options.width), nn.RMSNorm(options.width)])
        self.attention = Attention(options, window)
        self.feed_forward = nn.Sequential(
            nn.Linear(options.width, 2 * options.width), nn.GELU(), nn.Linear(2 * options.width, options.width)
        )

    def forward(self, x: Tensor, angles: Tensor, plan: marble.Plan) -> Tensor:
        """[rows, width] to [rows, width]."""
        x = x + self.attention(self.norms[0](x), angles, plan)
        return x + self.feed_forward(self.norms[1](x))


class Model(nn.Module):
    """Text and image features in, logits out; all of a rank's rows."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.text = nn.Embedding(VOCABULARY, options.width)
        self.image = nn.Linear(FEATURES, options.width)
        self.blocks = nn.ModuleList([Block(options, window) for window in (None, WINDOW)])
        self.norm = nn.RMSNorm(options.width)
        self.head = nn.Linear(options.width, VOCABULARY)
        self.half_dim = options.width // options.heads // 2

    def forward(self, ids: Tensor, features: Tensor, is_image: Tensor, positions: Tensor, plan: marble.Plan) -> Tensor:
        """Logits [rows, VOCABULARY]."""
        x = torch.where(is_image[:, None], self.image(features), self.text(ids))
        steps = torch.arange(self.half_dim, device=ids.device, dtype=torch.float32) / self.half_dim
        angles = positions[:, None] * 10_000.0**-steps
        for block in self.blocks:
            x = block(x, angles, plan)
        return self.head(self.norm(x))


def attention_of(options: Options) -> marble.Model:
    """What the planner needs to know of the model."""
    return marble.Model(
        heads=options.heads,
        kv_heads=options.kv_heads,
        head_dim=options.width // options.heads,
        layers={None: 1, WINDOW: 1},
    )


def loss_of(model: nn.Module, batch: Batch, plan: marble.Plan, options: Options) -> Tensor:
    """The mean loss of all ranks' labelled tokens; FSDP averages gradients over ranks, plain replicas sum them."""
    device = options.device
    labels = plan.shard(batch.labels, fill=-100).to(device)
    logits = model(
        plan.shard(batch.ids).to(device),
        plan.shard(batch.features).to(device),
        plan.shard(batch.is_image).to(device),
        plan.rope_positions().to(device),
        plan,
    )
    losses = F.cross_entropy(logits.float(), labels, reduction="none", ignore_index=-100)
    return marble.token_mean(losses, labels != -100, plan, gradients="averaged" if options.fsdp else "summed")


def shard_parameters(model: Model, mesh: marble.Mesh, device_mesh: dist.device_mesh.DeviceMesh) -> None:
    """FSDP2 over all ranks of the mesh: each block, then the rest."""
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)


def train(options: Options, mesh: marble.Mesh, group: dist.ProcessGroup | None = None, progress: bool = False) -> dict:
    """Runs ``options.steps`` steps; returns the losses and the norm of the first step's gradients, parameter by
    parameter.
    """
    torch.manual_seed(options.seed)
    model = Model(options).to(options.device)
    if options.fsdp:
        from torch.distributed.device_mesh import DeviceMesh

        shard_parameters(model, mesh, DeviceMesh.from_group(group or dist.group.WORLD, options.device.split(":")[0]))
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    losses, norms = [], {}
    block = 32 if options.device == "cpu" else 128  # small ones suit packs as short as these; GPUs have one size
    bar = Progress(
        TextColumn("loss {task.fields[loss]:.4f}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        disable=not progress,
    )
    with bar:
        task = bar.add_task("train", total=options.steps, loss=float("nan"))
        for step in range(options.steps):
            batch = make_batch(options, step)
            plan = marble.plan(batch.layout, model=attention_of(options), mesh=mesh, block=block)
            loss = loss_of(run, batch, plan, options)
            loss.backward()
            if mesh.size > 1 and not options.fsdp:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=group)
            if step == 0:
                norms = {name: _norm(parameter.grad) for name, parameter in model.named_parameters()}
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            bar.update(task, advance=1, loss=losses[-1])
    return {"losses": losses, "gradient_norms": norms}


def _norm(grad: Tensor) -> float:
    whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    return whole.double().norm().item()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in asdict(Options()).items():
        kind = {"action": "store_true"} if isinstance(default, bool) else {"type": type(default), "default": default}
        parser.add_argument("--" + name.replace("_", "-"), **kind)
    parser.add_argument("--out", type=Path, help="write losses and gradient norms here")
    arguments = vars(parser.parse_args())
    out = arguments.pop("out")
    options = Options(**arguments)

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if options.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl")
    if options.device == "cpu":
        torch.set_num_threads(1)  # the model is too small to share between cores
    mesh = marble.Mesh.from_env(ulysses=options.ulysses)
    start = time.perf_counter()
    result = train(options, mesh, progress=mesh.rank == 0)
    if mesh.rank == 0:
        losses = result["losses"]
        print(
            f"ring {mesh.ring} x ulysses {mesh.ulysses}{', FSDP2' if options.fsdp else ''}: "
            f"loss {losses[0]:.6f} -> {losses[-1]:.6f} in {options.steps} steps, {time.perf_counter() - start:.1f} s"
        )
        if out is not None:
            out.write_text(json.dumps({"options": asdict(options), "ring": mesh.ring, **result}))
    if dist.is_initialized():
        marble.forget_group(mesh.group)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

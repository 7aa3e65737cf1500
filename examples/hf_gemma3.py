# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""A Gemma 3 of Hugging Face transformers on a pack of text and images, against itself with plain dense attention.

    python examples/hf_gemma3.py                                              # fp32
    python examples/hf_gemma3.py --device cuda                                # bf16
    torchrun --nproc-per-node 2 examples/hf_gemma3.py --device cuda --ulysses 2

The model is made from its configuration, small and with random weights. Loss, logits and the gradients of all
parameters are compared with those of the dense model in fp32. In bf16 they may be off by twice what the dense model is
off by when it runs in bf16 itself. Exits with 1 if they are off by more.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from typing import Any, NamedTuple

import marble
import marble.hf
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

VOCABULARY, IMAGE = 512, 500  # tokens; the one that stands for a patch of an image
IMAGE_TOKENS, PIXELS = 64, 32
WINDOW = 128
SAMPLES: list[list[int | str]] = [  # tokens of text, images
    [150, "image", 170],
    [40, "image", 60, "image", 30],
    [260],
    [5, "image", 140],
]
FP32_BOUNDS = {"logits": 1e-4, "gradients": 1e-3}


class Pack(NamedTuple):
    """What the model takes, its labels (the next token; -100 at images and ends), and the mask, as spans and dense."""

    inputs: dict[str, Tensor]
    labels: Tensor
    layout: marble.Layout
    masks: dict[str, Tensor]


def make_model() -> Gemma3ForConditionalGeneration:
    """Five layers with a window, one without; weights large enough that attention is not level."""
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 64,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "max_position_embeddings": 4096,
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": PIXELS,
        "patch_size": 4,
    }
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=IMAGE_TOKENS,
        image_token_index=IMAGE,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.06)
    return model


def make_pack() -> Pack:
    """SAMPLES, one after the other."""
    random = torch.Generator().manual_seed(1)
    lengths = [[part if isinstance(part, int) else IMAGE_TOKENS for part in sample] for sample in SAMPLES]
    sample = torch.repeat_interleave(torch.arange(len(SAMPLES)), torch.tensor([sum(parts) for parts in lengths]))
    is_image = torch.cat(
        [
            torch.full((length,), part == "image")
            for parts, sizes in zip(SAMPLES, lengths, strict=True)
            for part, length in zip(parts, sizes, strict=True)
        ]
    )
    ids = torch.randint(3, IMAGE, sample.shape, generator=random).masked_fill(is_image, IMAGE)
    labels = torch.cat([ids[1:], ids[:1]])
    ends = torch.cat([sample[1:] != sample[:-1], torch.tensor([True])])
    layout = marble.hf.image_layout([sum(parts) for parts in lengths], is_image, window=WINDOW)
    inputs = {
        "input_ids": ids[None],
        "position_ids": torch.cat([torch.arange(sum(parts)) for parts in lengths])[None],
        "pixel_values": torch.randn(int(is_image.sum()) // IMAGE_TOKENS, 3, PIXELS, PIXELS, generator=random),
    }
    return Pack(inputs, labels.masked_fill(ends | (labels == IMAGE), -100), layout, dense_masks(sample, is_image))


def dense_masks(sample: Tensor, is_image: Tensor) -> dict[str, Tensor]:
    """Which keys each query sees, bool [tokens, tokens], by kind of layer: written without marble."""
    position = torch.arange(len(sample))
    distance = position[:, None] - position
    image = (is_image & ~torch.cat([torch.tensor([False]), is_image[:-1]])).cumsum(0)
    same_image = (is_image[:, None] & is_image) & (image[:, None] == image)
    seen = (sample[:, None] == sample) & ((distance >= 0) | same_image)
    return {"full_attention": seen, "sliding_attention": seen & ((distance < WINDOW) | same_image)}


def to(values: dict[str, Tensor], device: torch.device | str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors on a device, those of floating point in a type."""
    return {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in values.items()}


def run_dense(model: Gemma3ForConditionalGeneration, pack: Pack) -> dict[str, Any]:
    """Loss, logits [tokens, vocabulary] and gradients, with transformers' own attention."""
    least = torch.finfo(model.dtype).min
    masks = {
        kind: torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, least)[None, None].to(model.device)
        for kind, seen in pack.masks.items()
    }
    inputs = to(pack.inputs, model.device, model.dtype)
    logits = model(**inputs, attention_mask=masks, use_cache=False).logits[0]
    loss = F.cross_entropy(logits.float(), pack.labels.to(model.device))
    loss.backward()
    return {"loss": loss.detach(), "logits": logits.detach(), "gradients": take_gradients(model)}


def run_marble(
    model: Gemma3ForConditionalGeneration, pack: Pack, mesh: marble.Mesh, group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """The same over the ranks of a mesh, which are those of the group; the model's weights are on each of them."""
    model.set_attn_implementation({"text_config": "marble", "vision_config": "eager"})
    marble.hf.shard_inputs(model)
    plan = marble.plan(pack.layout, model=marble.hf.attention_model(model.config), mesh=mesh)
    inputs = to(pack.inputs, model.device, model.dtype)
    logits = model(**inputs, marble_plan=plan).logits[0]
    labels = plan.shard(pack.labels, fill=-100).to(model.device)
    losses = F.cross_entropy(logits.float(), labels, reduction="none", ignore_index=-100)
    loss = marble.token_mean(losses, labels != -100, plan)
    loss.backward()
    gradients = take_gradients(model)
    if mesh.size > 1:
        for gradient in gradients.values():
            dist.all_reduce(gradient, group=group)
    return {"loss": loss.detach(), "logits": plan.unshard(logits.detach()), "gradients": gradients}


def take_gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients of all parameters in fp32, which are reset."""
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.float()
        for name, parameter in model.named_parameters()
    }
    model.zero_grad()
    return gradients


def errors(result: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    """Relative errors: of the logits, and of the worst parameter's gradient (tiny ones count over more)."""
    gradients = exact["gradients"]
    floor = 1e-4 * max(gradient.norm() for gradient in gradients.values())
    worst = max(
        ((result["gradients"][name] - gradient).norm() / max(gradient.norm(), floor)).item()
        for name, gradient in gradients.items()
    )
    logits = (result["logits"].float() - exact["logits"]).norm() / exact["logits"].norm()
    return {"logits": logits.item(), "gradients": worst}


def compare(
    device: str, mesh: marble.Mesh, group: dist.ProcessGroup | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """The errors and their bounds."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    pack = make_pack()
    model = make_model().to(device, dtype)
    exact = run_dense(copy.deepcopy(model).float(), pack)
    bounds = FP32_BOUNDS
    if dtype != torch.float32:
        bounds = {name: 2 * error for name, error in errors(run_dense(model, pack), exact).items()}
    result = run_marble(model, pack, mesh, group)
    if mesh.rank == 0:
        print(f"{pack.layout}, {mesh.size} ranks, {dtype}: loss {result['loss']:.6f}, dense fp32 {exact['loss']:.6f}")
    return errors(result, exact), bounds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ulysses", type=int, default=1)
    options = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if options.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl")
    mesh = marble.Mesh.from_env(ulysses=options.ulysses)
    found, bounds = compare(options.device, mesh)
    if mesh.rank == 0:
        for name, error in found.items():
            print(f"{name}: relative error {error:.2e}, bound {bounds[name]:.2e}")
    if dist.is_initialized():
        marble.forget_group(mesh.group)
        dist.destroy_process_group()
    sys.exit(any(not found[name] <= bound for name, bound in bounds.items()))


if __name__ == "__main__":
    main()

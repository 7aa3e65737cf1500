# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Small transformers models made from their configurations, with a pack for each."""

import marble.hf
import torch
from masks import dense_mask
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

VOCABULARY = 80
IMAGE = 70  # the image token
SAMPLES = [37, 58, 21]


def _ids(images: list[tuple[int, int]], copies: int) -> torch.Tensor:
    """Packs of SAMPLES, one after the other, with image tokens at (position, length) of each."""
    tokens = sum(SAMPLES)
    ids = torch.randint(1, 60, (copies, tokens), generator=torch.Generator().manual_seed(0))
    for position, length in images:
        ids[:, position : position + length] = IMAGE
    return ids.reshape(1, -1)


def llama(copies):
    """A Llama, its layout and inputs."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        attn_implementation="eager",
    )
    return LlamaForCausalLM, config, marble.hf.image_layout(SAMPLES * copies), {"input_ids": _ids([], copies)}


def gemma3(copies):
    """A Gemma 3 with two images of 16 tokens, a window of 20 on two of three layers."""
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 20,
        "query_pre_attn_scalar": 11,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=16,
        image_token_id=IMAGE,
        boi_token_id=71,
        eoi_token_id=72,
        attn_implementation="eager",
    )
    images = [(10, 16), (55, 16)]
    ids = _ids(images, copies)
    inputs = {
        "input_ids": ids,
        "pixel_values": torch.randn(copies * len(images), 3, 16, 16, generator=torch.Generator().manual_seed(1)),
    }
    layout = marble.hf.image_layout(SAMPLES * copies, ids[0] == IMAGE, window=20)
    return Gemma3ForConditionalGeneration, config, layout, inputs


def qwen3_vl(copies):
    """A Qwen3-VL with two images of 9 and 6 tokens and two deepstack layers."""
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
        "pad_token_id": 0,
    }
    vision = {
        "depth": 3,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=71,
        vision_start_token_id=72,
        vision_end_token_id=73,
        attn_implementation="eager",
    )
    grids = torch.tensor([[1, 6, 6], [1, 4, 6]] * copies)
    images = [(12, 9), (60, 6)]
    ids = _ids(images, copies)
    patches = int(grids.prod(1).sum())
    inputs = {
        "input_ids": ids,
        "image_grid_thw": grids,
        "pixel_values": torch.randn(patches, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(1)),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }
    return Qwen3VLForConditionalGeneration, config, marble.hf.image_layout(SAMPLES * copies), inputs


MODELS = {"llama": llama, "gemma3": gemma3, "qwen3_vl": qwen3_vl}


def build(kind: str, copies: int = 1):
    """The model with seeded weights, its layout and the inputs of one pack, positions restarting at each sample."""
    cls, config, layout, inputs = MODELS[kind](copies)
    torch.manual_seed(0)
    model = cls._from_config(config) if hasattr(cls, "_from_config") else cls(config)
    for parameter in model.parameters():  # weights large enough that masks matter
        torch.nn.init.normal_(parameter, std=0.2)
    inside = torch.from_numpy(layout.positions_in_sample())
    if kind == "qwen3_vl":
        inputs["position_ids"] = (inside + torch.tensor([[0], [1], [3]]) * (inputs["input_ids"] == IMAGE)).unsqueeze(1)
    else:
        inputs["position_ids"] = inside.unsqueeze(0)
    return model, layout, inputs


def dense_masks(model, layout):
    """What the dense model gets as attention_mask: additive [1, 1, tokens, tokens], by layer type where it has such."""

    def additive(window):
        hidden = ~dense_mask(layout, window).to(model.device)
        least = torch.finfo(model.dtype).min
        return torch.zeros(hidden.shape, device=model.device, dtype=model.dtype).masked_fill(hidden, least)[None, None]

    text = model.config.get_text_config()
    if getattr(text, "layer_types", None) and "sliding_attention" in text.layer_types:
        return {"full_attention": additive(0), "sliding_attention": additive(text.sliding_window)}
    return additive(0)

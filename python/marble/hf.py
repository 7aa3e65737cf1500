# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: the attention implementation ``"marble"``, and sharding at the language model's input.

    import marble.hf

    model.set_attn_implementation({"text_config": "marble", "vision_config": "sdpa"})   # text-only models: "marble"
    marble.hf.shard_inputs(model)
    plan = marble.plan(layout, model=marble.hf.attention_model(model.config), mesh=mesh)
    output = model(input_ids=ids, position_ids=positions, pixel_values=pixels, marble_plan=plan)
    output.logits                                                                       # [1, rows, vocabulary]

A model merges its images into the embeddings of the whole pack, [1, tokens, ...], as ever; the plan's rows are taken
where its language model begins, so images may straddle ranks. Nothing is patched: transformers' registries name the
attention and a mask function that builds nothing, ``marble_plan`` travels as a keyword argument, and ``shard_inputs``
is a forward hook. Gradients by what feeds the language model are each rank's own part (see :mod:`marble.sharding`); DDP
and FSDP sum them. Parameters, and so checkpoints, are those of the model without marble.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from marble.attention import attention
from marble.layout import Layout
from marble.model import Model, Window
from marble.plan import Plan

NAME = "marble"
_REFUSED = ("s_aux", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k", "output_attentions")


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    marble_plan: Plan | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface: [1, heads, rows, head_dim] to [1, rows, heads, head_dim].

    Raises ValueError without ``marble_plan``, and for what marble does not compute: a mask tensor (the layout is the
    mask), dropout, attention sinks, more than one pack in a batch.
    """
    if marble_plan is None:
        raise ValueError("marble_plan: absent; call the model with marble_plan=plan")
    if attention_mask is not None:
        raise ValueError("attention_mask: given; a plan's layout is its mask, pass none")
    if dropout:
        raise ValueError(f"dropout: {dropout} should be 0; marble has no attention dropout")
    for name in _REFUSED:
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise ValueError(f"{name}: marble's attention does not cover it")
    if query.shape[0] != 1:
        raise ValueError(f"batch: {query.shape[0]} should be 1; put all samples into one pack")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = attention(q, k, v, marble_plan, window=sliding_window, softmax_scale=scaling, softcap=softcap or 0.0)
    return out.unsqueeze(0), None


def build_no_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> None:
    """Transformers' mask interface. Raises ValueError for a padding mask: a pack has no padding."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("attention_mask: hides tokens; leave padding out of the pack")


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, build_no_mask)


def attention_model(config: PreTrainedConfig) -> Model:
    """The attention layers of a model's (text) configuration.

    Layers that are not attention (recurrent ones) make the model order dependent. Raises ValueError on kinds of
    attention that marble does not cover.
    """
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    layers: dict[int | Window | None, int] = {}
    for kind in kinds:
        if kind in ("full_attention", "sliding_attention"):
            window = text.sliding_window if kind == "sliding_attention" else None
            layers[window] = layers.get(window, 0) + 1
        elif kind != "linear_attention":
            raise ValueError(f"layer_types: {kind!r} should be full_attention, sliding_attention or linear_attention")
    return Model(
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        layers=layers,
        order_dependent="linear_attention" in kinds,
    )


def image_layout(sample_lens: list[int], image_mask: Tensor | None = None, *, window: int | None = None) -> Layout:
    """The layout of a pack whose runs of image tokens (``image_mask``, bool [tokens]) are bidirectional, as Gemma 3's
    are.

    Without a mask all is causal (Llama, Qwen3-VL). Raises ValueError for an image of more than ``window`` tokens, the
    sliding window of the model's local layers: there transformers' mask is one that spans cannot say.
    """
    sample = torch.repeat_interleave(torch.arange(len(sample_lens)), torch.tensor(sample_lens))
    if image_mask is None:
        return Layout.from_tracks(sample)
    inside = image_mask.flatten().cpu()
    if inside.shape != sample.shape:
        raise ValueError(f"image_mask: {len(inside)} tokens should be the sum of sample_lens, {len(sample)}")
    begins = inside.clone()
    begins[1:] &= ~inside[:-1] | (sample[1:] != sample[:-1])
    segment = torch.where(inside, begins.cumsum(0) - 1, -1)
    longest = int(torch.bincount(segment[inside]).max()) if bool(inside.any()) else 0
    if window is not None and longest > window:
        raise ValueError(f"image_mask: an image of {longest} tokens should fit the window of {window}")
    return Layout.from_tracks(sample, segment)


def shard_inputs(model: PreTrainedModel) -> RemovableHandle:
    """Takes a plan's rows where ``model``'s language model begins, in every call with ``marble_plan``.

    Embeddings or token ids, position ids (absent: the index within each sample), and Qwen3-VL's visual masks and
    deepstack features are replaced by this rank's. The returned handle removes the hook.
    """
    return model.get_decoder().register_forward_pre_hook(_shard_call, with_kwargs=True)


def _shard_call(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    plan = kwargs.get("marble_plan")
    if plan is None:
        return None
    if args:
        raise ValueError("input_ids: pass the language model's inputs by name")
    return args, {**kwargs, **_shard_inputs(plan, kwargs)}


def _shard_inputs(plan: Plan, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if kwargs.get("use_cache") and kwargs.get("cache") is not None:
        raise ValueError("cache: marble trains on whole packs; pass use_cache=False")
    given: dict[str, Any] = {"use_cache": False}
    for name in ("input_ids", "inputs_embeds"):
        if kwargs.get(name) is not None:
            given[name] = plan.shard(kwargs[name], dim=1)
            device = given[name].device
    if (positions := kwargs.get("position_ids")) is None:
        given["position_ids"] = plan.rope_positions().to(device).unsqueeze(0)
    else:
        given["position_ids"] = plan.shard(positions, dim=-1)
    if (visual := kwargs.get("visual_pos_masks")) is not None:
        given["visual_pos_masks"] = plan.shard(visual, dim=1)
        given["deepstack_visual_embeds"] = _shard_features(plan, visual, kwargs["deepstack_visual_embeds"])
    return given


def _shard_features(plan: Plan, visual: Tensor, features: list[Tensor]) -> list[Tensor]:
    """The features [visual tokens, ...] of this rank's visual rows, in row order."""
    number = plan.shard(visual.cumsum(1) - 1, dim=1, fill=0)
    mine = number[plan.shard(visual, dim=1)]
    return [feature.index_select(0, mine) for feature in features]

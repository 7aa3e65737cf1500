# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""transformers models, images and all, against themselves with dense attention."""

from itertools import pairwise

import marble
import pytest
import torch

models = pytest.importorskip("hf_models", reason="needs transformers")


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_vl"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_models_equal_their_dense_selves(pool, kind, ranks):
    pool.run(ranks, "transformers_model_is_dense", kind)


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_vl"])
def test_images_may_straddle_ranks(pool, kind):
    held = pool.run(4, "image_tokens_held", kind)
    assert any(first and second and second[0] == first[-1] + 1 for first, second in pairwise(held)), held
    pool.run(4, "transformers_model_is_dense", kind, placement="contiguous", canonical="sequence")


def test_the_gemma3_example_is_dense(pool):
    pool.run(2, "gemma3_example_is_dense")


def test_what_it_cannot_compute_is_refused():
    model, layout, inputs = models.build("llama")
    model.set_attn_implementation("marble")
    marble.hf.shard_inputs(model)
    plan = marble.plan(layout, model=marble.hf.attention_model(model.config))
    with pytest.raises(ValueError, match="marble_plan: absent"):
        model(**inputs)
    padding = torch.ones(1, layout.num_tokens, dtype=torch.bool)
    padding[0, -3:] = False
    with pytest.raises(ValueError, match="attention_mask: hides tokens"):
        model(**inputs, attention_mask=plan.shard(padding, dim=1, fill=1), marble_plan=plan)
    with pytest.raises(ValueError, match="batch: 2 should be 1"):
        double = {name: x.repeat(2, 1) for name, x in inputs.items()}
        model(**double, marble_plan=plan)
    model.config.attention_dropout = 0.1
    model.train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ValueError, match=r"dropout: 0\.1 should be 0"):
        model(**inputs, marble_plan=plan)


def test_configurations_become_models():
    model, _, _ = models.build("gemma3")
    expected = marble.Model(heads=4, kv_heads=2, head_dim=8, layers={20: 2, None: 1})
    assert marble.hf.attention_model(model.config) == expected


def test_images_become_spans():
    mask = torch.zeros(sum(models.SAMPLES), dtype=torch.bool)
    mask[30:45] = True  # over the end of the first sample
    layout = marble.hf.image_layout(models.SAMPLES, mask)
    assert layout.samples() == [[("causal", 30), ("full", 7)], [("full", 8), ("causal", 50)], [("causal", 21)]]
    with pytest.raises(ValueError, match="an image of 8 tokens should fit the window of 4"):
        marble.hf.image_layout(models.SAMPLES, mask, window=4)
    with pytest.raises(ValueError, match="5 tokens should be the sum of sample_lens"):
        marble.hf.image_layout(models.SAMPLES, mask[:5])

# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Whole models: of transformers, and of the example."""

import copy
import importlib
import pathlib
import sys

import marble
import torch
import torch.distributed as dist
from reference import relative_error

from .attention import LOW_PRECISION_RATIO
from .meshes import mesh_of


def _grad(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _run_dense(model, layout, inputs, weight):
    """Logits and parameter gradients of a transformers model with dense attention."""
    from hf_models import dense_masks

    logits = model(**inputs, attention_mask=dense_masks(model, layout), use_cache=False).logits
    (logits * weight).sum().backward()
    return logits.detach(), _take_grads(model)


def _take_grads(model):
    grads = {name: _grad(parameter).clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return grads


def _largest_errors(logits, grads, exact_logits, exact_grads):
    """Relative errors of logits and of each parameter's gradient; of gradients that are next to nothing, over more."""
    floor = 1e-4 * max(grad.norm() for grad in exact_grads.values())
    errors = {
        name: ((grads[name].float() - exact).norm() / max(exact.norm(), floor)).item()
        for name, exact in exact_grads.items()
    }
    return {"logits": relative_error(logits, exact_logits), **errors}


def transformers_model_is_dense(group, kind, *, copies=1, block=16, device="cpu", dtype="float32", **options):
    """
    Logits and parameter gradients of a transformers model over all ranks against the same model with dense attention in
    fp32. In low precision the bounds are what that model is off by when it runs in low precision itself: its logits,
    and its worst gradient (a norm's few weights are too few to compare one by one).
    """
    from hf_models import build

    model, layout, inputs = build(kind, copies)
    dtype = getattr(torch, dtype)
    model.to(device, dtype)
    inputs = {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in inputs.items()}
    weight = torch.randn(
        1, layout.num_tokens, model.config.get_text_config().vocab_size, generator=torch.Generator().manual_seed(5)
    ).to(device, dtype)
    exact_inputs = {name: x.float() if x.is_floating_point() else x for name, x in inputs.items()}
    exact = _run_dense(copy.deepcopy(model).float(), layout, exact_inputs, weight.float())
    bounds = {"logits": 1e-4, **dict.fromkeys(exact[1], 1e-3)}
    if dtype != torch.float32:
        noise = _largest_errors(*_run_dense(model, layout, inputs, weight), *exact)
        of_logits = LOW_PRECISION_RATIO * noise.pop("logits")
        bounds = {"logits": of_logits, **dict.fromkeys(noise, LOW_PRECISION_RATIO * max(noise.values()))}
    state = {name: value.clone() for name, value in model.state_dict().items()}

    vision = {"vision_config": "eager"} if hasattr(model.config, "vision_config") else {}
    model.set_attn_implementation({"text_config": "marble", **vision} if vision else "marble")
    handle = marble.hf.shard_inputs(model)
    plan = marble.plan(
        layout,
        model=marble.hf.attention_model(model.config),
        mesh=mesh_of(group),
        block=block,
        **options,
    )
    logits = model(**inputs, marble_plan=plan).logits
    assert logits.shape[1] == plan.rows
    (logits * plan.shard(weight, dim=1)).sum().backward()
    whole = plan.unshard(logits.detach(), dim=1)
    grads = _take_grads(model)
    for grad in grads.values():
        dist.all_reduce(grad, group=group)
    errors = _largest_errors(whole, grads, *exact)
    worst = {name: (error, bounds[name]) for name, error in errors.items() if error > bounds[name]}
    assert not worst, worst
    handle.remove()
    assert state.keys() == model.state_dict().keys()
    return max(error / bounds[name] for name, error in errors.items())


def wrapped_gradients_are_those_of_one_process(group, wrapper, device="cpu"):
    """Under DDP, and under FSDP2 in bf16 with a checkpointed and compiled layer: the gradients of one process."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(32, 512), torch.nn.Linear(256, 32)

        def attend(self, x, plan):
            heads = self.qkv(x).unflatten(-1, (-1, 64))
            return self.out(marble.attention(heads[:, :4], heads[:, 4:6], heads[:, 6:], plan).flatten(1))

        def forward(self, x, plan):
            return x + checkpoint(self.attend, x, plan, use_reentrant=False)

    layout = marble.Layout([[("causal", 700), ("full", 300)], [("causal", 401)]])
    model = marble.Model(heads=4, kv_heads=2, head_dim=64)
    torch.manual_seed(0)
    layer = Layer().to(device)
    x = torch.randn(layout.num_tokens, 32, generator=torch.Generator().manual_seed(1)).to(device)
    valid = torch.rand(layout.num_tokens, generator=torch.Generator().manual_seed(2)).to(device) < 0.5

    def gradients(module, mesh, convention):
        plan = marble.plan(layout, model=model, mesh=mesh)
        losses = module(plan.shard(x), plan).float().square().mean(1)
        marble.token_mean(losses, plan.shard(valid, fill=0), plan, gradients=convention).backward()
        found = [parameter.grad for parameter in module.parameters()]
        return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]

    low = device != "cpu" or wrapper == "fsdp2"
    with torch.autocast(device, torch.bfloat16, enabled=low):
        expected = gradients(copy.deepcopy(layer), marble.Mesh(), "summed")
    if wrapper == "ddp":
        wrapped = DistributedDataParallel(layer, process_group=group)
    else:
        layer.compile(backend="aot_eager")
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        wrapped = fully_shard(layer, mesh=DeviceMesh.from_group(group, device), mp_policy=policy)
    with torch.autocast(device, torch.bfloat16, enabled=low and wrapper == "ddp"):
        found = gradients(wrapped, mesh_of(group), "averaged")
    errors = [relative_error(*pair) for pair in zip(found, expected, strict=True)]
    assert max(errors) < (3e-2 if low else 1e-5), errors
    torch._dynamo.reset()


def image_tokens_held(group, kind):
    """Pack positions of the image tokens that this rank holds under contiguous placement."""
    from hf_models import IMAGE, build

    model, layout, inputs = build(kind)
    plan = marble.plan(
        layout,
        model=marble.hf.attention_model(model.config),
        mesh=mesh_of(group),
        block=16,
        placement="contiguous",
        canonical="sequence",
    )
    visual = plan.shard(inputs["input_ids"] == IMAGE, dim=1)
    return plan.positions[visual[0]].tolist()


def _import_example(name):
    examples = str(pathlib.Path(__file__).parents[3] / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    return importlib.import_module(name)


def gemma3_example_is_dense(group, *, device="cpu", ulysses=1):
    """examples/hf_gemma3.py on this group: the errors over their bounds."""
    found, bounds = _import_example("hf_gemma3").compare(device, mesh_of(group, ulysses=ulysses), group)
    assert all(found[name] <= bound for name, bound in bounds.items()), (found, bounds)
    return {name: found[name] / bound for name, bound in bounds.items()}


def train_example(group, **options):
    """The losses and gradient norms of examples/train_packed.py on this group."""
    train_packed = _import_example("train_packed")
    settings = train_packed.Options(**{"tokens": 300, **options})
    return train_packed.train(settings, mesh_of(group, ulysses=settings.ulysses), group)

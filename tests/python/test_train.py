# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""The examples: equal losses and gradients on every mesh."""

import pathlib
import subprocess
import sys

import pytest
import torch

STEPS = 4
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
needs_fsdp2 = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="this PyTorch has no FSDP2 on CPUs"
)


@pytest.fixture(scope="module")
def one_process(pool):
    (result,) = pool.run(1, "train_example", steps=STEPS)
    return result


@pytest.mark.parametrize(
    ("ranks", "ulysses", "fsdp"),
    [
        (4, 1, False),
        (4, 2, False),
        *(pytest.param(*mesh, True, marks=needs_fsdp2) for mesh in ((4, 1), (4, 2), (3, 1))),
    ],
)
def test_every_mesh_trains_alike(pool, one_process, ranks, ulysses, fsdp):
    for result in pool.run(ranks, "train_example", steps=STEPS, ulysses=ulysses, fsdp=fsdp):
        assert result["losses"] == pytest.approx(one_process["losses"], rel=1e-5)
        assert result["gradient_norms"] == pytest.approx(one_process["gradient_norms"], rel=1e-4)
    assert one_process["losses"][-1] < one_process["losses"][0]


@pytest.mark.parametrize("wrapper", ["ddp", pytest.param("fsdp2", marks=needs_fsdp2)])
def test_wrapped_models_have_the_gradients_of_one_process(pool, wrapper):
    pool.run(3, "wrapped_gradients_are_those_of_one_process", wrapper)


@needs_fsdp2
def test_the_torchtitan_example_begins_with_the_dense_models_loss():
    """Compiled, checkpointed and FSDP2; the example compares the first loss itself."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, EXAMPLES / "torchtitan_style.py", "--ulysses", "2"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout
    assert printed.count("loss") == 3
